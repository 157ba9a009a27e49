"""Whether a model's files are those that it was loaded from."""

from __future__ import annotations

import os
from pathlib import Path

# Path, size in bytes, time of the last change in ns, inode.
FileIdentity = tuple[str, int, int, int]

# The executor gets the configuration in its commands.
_CONFIG = "config.pbtxt"


def read_file_identities(version_path: Path) -> frozenset[FileIdentity] | None:
    """The files of a version and those beside the model's versions, such as labels; None: they
    cannot be read. Blocks.
    """
    model_path = version_path.parent
    found: set[FileIdentity] = set()
    try:
        _add_files(version_path, found)
        if model_path.exists():
            with os.scandir(model_path) as entries:
                for entry in entries:
                    if entry.is_file():
                        if entry.name != _CONFIG:
                            _add_file(entry, found)
                    elif not entry.name.isdecimal():
                        _add_files(Path(entry.path), found)
    except OSError:
        return None
    return frozenset(found)


def _add_files(directory: Path, found: set[FileIdentity]) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            # Models leave compiled modules and the like behind.
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    _add_files(Path(entry.path), found)
            else:
                _add_file(entry, found)


def _add_file(entry: os.DirEntry[str], found: set[FileIdentity]) -> None:
    # Of the file that a link points to: Kubernetes exchanges those.
    status = entry.stat()
    found.add((entry.path, status.st_size, status.st_mtime_ns, status.st_ino))
