"""A model's directory, as it is read for its configuration and versions, wherever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nereid.services.scheduler.repository.revision import digest_files

if TYPE_CHECKING:
    from pathlib import Path


class ModelFolder(Protocol):
    """Every method may raise OSError."""

    @property
    def path(self) -> Path:
        """Of a directory on this host; its name is the model's in any case."""

    @property
    def url(self) -> str:
        """In an object store; empty: on this host."""

    def subfolders(self) -> list[str]:
        """The names of the folders in it."""

    def names_in(self, folder: str) -> list[str]:
        """What is in one of those."""

    def has_file(self, name: str) -> bool:
        """Whether there is a file, by its path in the folder."""

    def read(self, name: str) -> bytes:
        """A small file. Raises FileNotFoundError: there is none."""

    def digest(self, version: int) -> bytes:
        """16 bytes for the files of a version and those that all versions share."""


class LocalFolder:
    """On a file system of this host."""

    url = ""

    def __init__(self, path: Path) -> None:
        self.path = path

    def subfolders(self) -> list[str]:
        return [place.name for place in self.path.iterdir() if place.is_dir()]

    def names_in(self, folder: str) -> list[str]:
        return [place.name for place in (self.path / folder).iterdir()]

    def has_file(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def digest(self, version: int) -> bytes:
        return digest_files(str(self.path.absolute() / str(version)))
