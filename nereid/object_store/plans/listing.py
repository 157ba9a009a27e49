"""Listings of models in object stores: versions, and digests of the versions' files."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.files.model_folders import may_be_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_CONFIG_FILE: Final = "config.pbtxt"
_CONFIG_FOLDER: Final = "configs"
_DIGEST_BYTES: Final = 16


class StoredObject(NamedTuple):
    """An object as listed. Its tag changes with its content; md5 is hexadecimal or empty."""

    size: int
    tag: str
    md5: str = ""


class ModelListing:
    """The objects of one model, by their paths in the model's directory; immutable."""

    __slots__ = ("files", "folders")

    def __init__(self, files: Mapping[str, StoredObject], folders: Iterable[str] = ()) -> None:
        """Create a listing. `folders` are listed as objects, and may be empty."""
        self.files = dict(files)
        self.folders = frozenset(folders)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModelListing):
            return NotImplemented
        return self.files == other.files and self.folders == other.folders

    __hash__ = None  # type: ignore[assignment]

    def subfolders(self) -> set[str]:
        """Return the names of the folders in the model's directory."""
        names = {path.partition("/")[0] for path in self.files if "/" in path}
        return names | {path.partition("/")[0] for path in self.folders}

    def names_in(self, folder: str) -> list[str]:
        """Return the names of the files and folders in one of the subfolders, sorted."""
        prefix = f"{folder}/"
        below = [
            path.removeprefix(prefix)
            for path in (*self.files, *self.folders)
            if path.startswith(prefix)
        ]
        return sorted({path.partition("/")[0] for path in below})

    def version_files(self, version: str) -> dict[str, StoredObject]:
        """Return a version's files, and files that all versions share (labels, environments)."""
        return {path: stored for path, stored in self.files.items() if _belongs_to(path, version)}

    def digest(self, version: str) -> bytes:
        """Return a digest of 16 bytes over version_files() without configurations."""
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for path, stored in sorted(self.version_files(version).items()):
            if not (path.startswith("config.") and path.endswith(".pbtxt")):
                name, tag = path.encode(), stored.tag.encode()
                digest.update(b"%d:%b%d:%b%d;" % (len(name), name, len(tag), tag, stored.size))
        return digest.digest()


def _belongs_to(path: str, version: str) -> bool:
    folder, slash, _ = path.partition("/")
    if not slash:
        return True
    return folder == version or not (folder.isdigit() or folder == _CONFIG_FOLDER)


def split_into_models(
    files: Mapping[str, StoredObject], folders: Iterable[str] = ()
) -> dict[str, ModelListing]:
    """Return the models of a repository by name. Keys of files are relative to the repository."""
    by_model: dict[str, dict[str, StoredObject]] = {}
    folders_of: dict[str, list[str]] = {}
    for name, path, key in _split(files):
        by_model.setdefault(name, {})[path] = files[key]
    for name, path, _ in _split(f"{folder}/" for folder in folders):
        folders_of.setdefault(name, []).extend([path.rstrip("/")] if path else [])
    return {
        name: ModelListing(by_model.get(name, {}), folders_of.get(name, ()))
        for name in sorted(by_model.keys() | folders_of)
    }


def _split(keys: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    for key in keys:
        name, slash, path = key.partition("/")
        if slash and may_be_model(name):
            yield name, path, key


def changed_models(
    before: Mapping[str, ModelListing], after: Mapping[str, ModelListing]
) -> set[str]:
    """Return the names of models that are new, were deleted, or have changed objects."""
    return {name for name in before.keys() | after if before.get(name) != after.get(name)}


def is_plain_key(key: str) -> bool:
    """Return whether a key, used as a path in a directory, cannot lead out of the directory."""
    return "\0" not in key and not {"", ".", ".."}.intersection(key.split("/"))
