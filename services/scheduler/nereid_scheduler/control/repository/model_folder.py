"""A model's directory, as it is read for its configuration and versions, wherever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from nereid.core.files.regular_files import read_regular_file
from nereid_scheduler.core.models.revision import (
    CONFIG_FILE,
    CONFIG_FOLDER,
    digest_states,
    file_states,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from nereid_scheduler.core.models.revision import FileState

# What tools write beside the model.onnx that they export: MLflow, Hugging Face's Optimum.
EXPORT_MARKS: Final = ("MLmodel", "config.json")
_EXPORTED: Final = "model.onnx"
# Where that is: in the directory itself, or as Transformers.js has it.
_EXPORT_PLACES: Final = (".", "onnx")
_LARGEST_VERSION: Final = (1 << 63) - 1


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

    @property
    def files(self) -> Collection[FileState]:
        """Those that digests were made of; none of an object store, where no load writes."""


class LocalFolder:
    """On a file system of this host."""

    url = ""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: set[FileState] = set()

    def subfolders(self) -> list[str]:
        return [place.name for place in self.path.iterdir() if place.is_dir()]

    def names_in(self, folder: str) -> list[str]:
        return [place.name for place in (self.path / folder).iterdir()]

    def has_file(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        return read_regular_file(self.path / name)

    def digest(self, version: int) -> bytes:
        return self._digest(str(version), beside=True)

    def digest_export(self, place: str) -> bytes:
        """16 bytes for the files of an export."""
        return self._digest(place, beside=False)

    def _digest(self, place: str, *, beside: bool) -> bytes:
        directory = str(self.path.absolute() / place)
        states = file_states(directory, beside=beside)
        self.files.update(states)
        return digest_states(directory, states)


def version_numbers(names: Iterable[str]) -> list[int]:
    """Of folders, those that are versions: whole numbers without a leading zero."""
    numbers = (int(n) for n in names if n.isascii() and n.isdigit() and str(int(n)) == n)
    return sorted(number for number in numbers if number <= _LARGEST_VERSION)


def find_export(folder: LocalFolder) -> str:
    """Where in a directory the files of an MLflow model with ONNX, or of a Hugging Face export,
    are: it is a model with one version, and without a configuration. Empty: it is none, as a
    directory with anything of Triton's layout never is.
    """
    if not any(map(folder.has_file, EXPORT_MARKS)) or folder.has_file(CONFIG_FILE):
        return ""
    names = folder.subfolders()
    if CONFIG_FOLDER in names or version_numbers(names):
        return ""
    found = (each for each in _EXPORT_PLACES if folder.has_file(f"{each}/{_EXPORTED}"))
    return next(found, "")
