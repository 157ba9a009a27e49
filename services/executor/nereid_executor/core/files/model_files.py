"""Whether a model's files are those that it was loaded from: by their content, not their dates."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nereid_executor.core.files.file_digests import identity_of

# Path, size in bytes, and what tells its content from another.
FileIdentity = tuple[str, int, bytes | tuple[int, ...]]

# The executor gets the configuration in its commands.
_CONFIG = "config.pbtxt"


@dataclass(frozen=True)
class ModelFiles:
    """The files of a version, and those beside the model's versions, such as labels."""

    version: frozenset[FileIdentity]
    beside: frozenset[FileIdentity]

    def same_in(self, later: ModelFiles | None) -> bool:
        """Whether a load would find the same later; None: it would find nothing. Models may add
        files beside the versions as they run.
        """
        return later is not None and self.version == later.version and self.beside <= later.beside


def read_model_files(version_path: Path) -> ModelFiles | None:
    """As they are now; None: they cannot be read. Blocks."""
    version: set[FileIdentity] = set()
    beside: set[FileIdentity] = set()
    try:
        _add_files(version_path, version)
        if not version_path.name.isdecimal():
            # An export, beside which are other models.
            return ModelFiles(frozenset(version), frozenset())
        with os.scandir(version_path.parent) as entries:
            for entry in entries:
                if entry.is_file():
                    if entry.name != _CONFIG:
                        _add_file(entry, beside)
                elif not entry.name.isdecimal():
                    _add_files(Path(entry.path), beside)
    except OSError:
        return None
    return ModelFiles(frozenset(version), frozenset(beside))


def _add_files(directory: Path, found: set[FileIdentity]) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                # Which Python writes.
                if entry.name != "__pycache__":
                    _add_files(Path(entry.path), found)
            else:
                _add_file(entry, found)


def _add_file(entry: os.DirEntry[str], found: set[FileIdentity]) -> None:
    # Of the file that a link points to: Kubernetes exchanges those.
    found.add((entry.path, entry.stat().st_size, identity_of(Path(entry.path))))
