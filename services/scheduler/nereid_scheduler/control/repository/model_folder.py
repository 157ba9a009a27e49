"""Reads a model's directory for its configuration and versions, wherever the directory is."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from nereid.core.errors import InvalidArgument
from nereid.core.files.regular_files import read_regular_file
from nereid.text import files as text_files
from nereid.text.decision_reading import MANIFESTS, check_package
from nereid.text.documents import parse_document
from nereid_scheduler.core.models.revision import (
    CONFIG_FILE,
    CONFIG_FOLDER,
    digest_states,
    file_state,
    file_states,
    states_of,
)
from nereid_scheduler.core.models.text_files import TextFiles, find_text_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nereid_scheduler.core.models.revision import FileState

EXPORT_MARKS: Final = ("MLmodel", "config.json", *MANIFESTS)
_CHANGED: Final = "it has changed since the model was loaded; load the model again"
_EXPORTED: Final = "model.onnx"
# Folders of an export that may have model.onnx. Transformers.js has it in "onnx".
_EXPORT_PLACES: Final = (".", "onnx")
_MAX_VERSION: Final = (1 << 63) - 1


class ModelFolder(Protocol):
    """Directory of one model. Every method may raise OSError."""

    @property
    def path(self) -> Path:
        """Path of a directory on this host. Its last part is always the model's name."""

    @property
    def url(self) -> str:
        """URL in an object store; empty for a directory on this host."""

    def subfolders(self) -> list[str]:
        """Return the names of the folders in the directory."""

    def names_in(self, folder: str) -> list[str]:
        """Return the names of everything in one of the directory's folders."""

    def has_file(self, name: str) -> bool:
        """Return whether there is a file at this path in the directory."""

    def read(self, name: str) -> bytes:
        """Return a small file's content; raise FileNotFoundError if there is none."""

    def digest(self, version: int) -> bytes:
        """Return a 16-byte digest of a version's files and of the files that all versions share."""

    def text_files(self, place: str) -> TextFiles:
        """Return the files of text models in a folder that was digested, and beside it."""

    @property
    def files(self) -> Collection[FileState]:
        """Files that were digested; empty for an object store, where loads do not write."""


class LocalFolder:
    """Model directory on a file system of this host."""

    url = ""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: set[FileState] = set()

    def subfolders(self) -> list[str]:
        """Return the names of the folders in the directory."""
        return [place.name for place in self.path.iterdir() if place.is_dir()]

    def names_in(self, folder: str) -> list[str]:
        """Return the names of everything in one of the directory's folders."""
        return [place.name for place in (self.path / folder).iterdir()]

    def has_file(self, name: str) -> bool:
        """Return whether there is a regular file at this path in the directory."""
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        """Return a small file's content; raise FileNotFoundError if there is none."""
        return read_regular_file(self.path / name)

    def digest(self, version: int) -> bytes:
        """Return a 16-byte digest of a version's files and of the files that all versions share."""
        return self._digest(str(version), beside=True)

    def digest_export(self, place: str) -> bytes:
        """Return a 16-byte digest of the files of an export."""
        return self._digest(place, beside=False)

    def text_files(self, place: str) -> TextFiles:
        """Return the files of text models in a folder that was digested, and beside it."""
        digested, top = dict(self.files), str(self.path.absolute())
        paths = find_text_files(place, lambda path: f"{top}/{path}" in digested)
        states = {name: digested[f"{top}/{path}"] for name, path in paths.items()}

        def read(name: str, limit: int) -> bytes:
            path = Path(top, paths[name])
            content = read_regular_file(path, limit)
            if file_state(path) != (str(path), states[name]):
                raise OSError(errno.ESTALE, _CHANGED, str(path))
            return content

        return TextFiles(states, read)

    def _digest(self, place: str, *, beside: bool) -> bytes:
        directory = self.path.absolute() / place
        states = file_states(str(directory), beside=beside)
        if not beside and directory != self.path.absolute():
            # An export's model.onnx may have a folder of its own.
            paths = (self.path.absolute() / name for name in text_files.ALL)
            states += states_of(path for path in paths if path.is_file())
        self.files.update(states)
        return digest_states(str(directory), states)


def refuse_package(folder: ModelFolder) -> None:
    """Raise InvalidArgument for a package of decisions whose weights are no export."""
    for name in filter(folder.has_file, MANIFESTS):
        manifest = parse_document(name, folder.read(name))
        check_package(manifest)
        raise manifest.refuse("weights", f"expected a file '{_EXPORTED}'")


def refuse_stored_export(folder: ModelFolder) -> None:
    """Raise InvalidArgument for an export without a version's folder in an object store."""
    if not folder.url or not any(map(folder.has_file, EXPORT_MARKS)):
        return
    for name in (_EXPORTED, f"onnx/{_EXPORTED}"):
        if folder.has_file(name):
            raise InvalidArgument(
                f"the export in '{folder.path.name}' has no version: in an object store its"
                f" {name} belongs into a folder '1'"
            )


def version_numbers(names: Iterable[str]) -> list[int]:
    """Return the folders that are versions, sorted: whole numbers without a leading zero."""
    numbers = (
        int(name) for name in names if name.isascii() and name.isdigit() and str(int(name)) == name
    )
    return sorted(number for number in numbers if number <= _MAX_VERSION)


def find_export(folder: LocalFolder) -> str:
    """Return the folder with an export's files; empty if the directory is not an export.

    A directory that has any part of Triton's layout is never an export.
    """
    if not any(map(folder.has_file, EXPORT_MARKS)) or folder.has_file(CONFIG_FILE):
        return ""
    names = folder.subfolders()
    if CONFIG_FOLDER in names or version_numbers(names):
        return ""
    places = (place for place in _EXPORT_PLACES if folder.has_file(f"{place}/{_EXPORTED}"))
    return next(places, "")
