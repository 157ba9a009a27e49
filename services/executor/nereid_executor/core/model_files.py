"""Identities of a model's files. They depend on the files' content, not on their dates."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nereid.backends.file_digests import identity_of

# Path, size in bytes, and a value that distinguishes the content from any other.
FileIdentity = tuple[str, int, bytes | tuple[int, ...]]

# The file is ignored, since the executor gets the configuration in its commands.
_CONFIG = "config.pbtxt"


@dataclass(frozen=True)
class ModelFiles:
    """The files of a version, and the files beside the model's versions, such as labels."""

    version: frozenset[FileIdentity]
    shared_files: frozenset[FileIdentity]

    def same_in(self, later: ModelFiles | None) -> bool:
        """Return whether a load would find the same files again.

        Models may add files beside the versions while they run, so additional files are allowed
        there.
        """
        return (
            later is not None
            and self.version == later.version
            and self.shared_files <= later.shared_files
        )


def read_model_files(version_path: Path) -> ModelFiles | None:
    """Read the identities of a version's files; return `None` if they cannot be read. Blocks."""
    version: set[FileIdentity] = set()
    shared_files: set[FileIdentity] = set()
    try:
        _add_files(version_path, version)
        if not version_path.name.isdecimal():
            # The version is an export, so the files beside it belong to other models.
            return ModelFiles(frozenset(version), frozenset())
        with os.scandir(version_path.parent) as entries:
            for entry in entries:
                if entry.is_file():
                    if entry.name != _CONFIG:
                        _add_file(entry, shared_files)
                elif not entry.name.isdecimal():
                    _add_files(Path(entry.path), shared_files)
    except OSError:
        return None
    return ModelFiles(frozenset(version), frozenset(shared_files))


def _add_files(directory: Path, found: set[FileIdentity]) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                # Python itself writes this directory.
                if entry.name != "__pycache__":
                    _add_files(Path(entry.path), found)
            else:
                _add_file(entry, found)


def _add_file(entry: os.DirEntry[str], found: set[FileIdentity]) -> None:
    # A link has the identity of its target, since Kubernetes replaces targets.
    found.add((entry.path, entry.stat().st_size, identity_of(Path(entry.path))))
