"""Revision of a version: a digest of its configuration and files, to notice changes.

Files count by names, sizes and times, not by content: reading that would cost as much as a load.
The inode's change time is included, since a copy may keep a file's size and modification time. The
digest covers the version's directory and files that all versions share: labels, environments.
Instance groups and the version policy change no response and do not count.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nereid.pb import model_config_pb2 as config_pb


# Names beside a model's versions. Configurations count by their fields, not as files.
CONFIG_FILE: Final = "config.pbtxt"
CONFIG_FOLDER: Final = "configs"
# Python writes this folder when it loads a model.py.
_COMPILED: Final = "__pycache__"
_SIZE_BYTES: Final = 16


def revision_of(config: config_pb.ModelConfig, files: bytes) -> bytes:
    """Return 16 bytes that differ once the configuration or a file has changed."""
    counted = model_config_pb2.ModelConfig()
    counted.CopyFrom(config)
    for field in ("instance_group", "version_policy"):
        counted.ClearField(field)
    text = counted.SerializeToString(deterministic=True)
    framed = b"%d:%s%s" % (len(files), files, text)
    return hashlib.blake2b(framed, digest_size=_SIZE_BYTES).digest()


# Path of a file, and its size and times.
FileState = tuple[str, str]


def digest_files(version_path: str, *, beside: bool = True) -> bytes:
    """Return 16 bytes for the files of a version, and those beside it, read from disk."""
    return digest_states(version_path, file_states(version_path, beside=beside))


def file_states(version_path: str, *, beside: bool = True) -> list[FileState]:
    """Return the files of a version, and those beside it, in order, read from disk."""
    states: list[FileState] = []
    root = Path(version_path)
    for path in sorted(_files(root, root.parent if beside else root)):
        try:
            status = path.stat()
        except OSError:
            # The file was deleted meanwhile or is unreadable; the load will report that.
            continue
        text = f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns};"
        states.append((str(path), text))
    return states


def digest_states(version_path: str, states: Iterable[FileState]) -> bytes:
    """Return 16 bytes for the files of a version in these states."""
    digest = hashlib.blake2b(digest_size=_SIZE_BYTES)
    for path, state in states:
        name = os.fsencode(os.path.relpath(path, version_path))
        digest.update(b"%d:%s:%s" % (len(name), name, state.encode()))
    return digest.digest()


def _files(version: Path, top: Path) -> Iterator[Path]:
    """Yield the files of a version and those beside it, but not those of other versions.

    `top` is the version's parent, or the version itself if files beside it do not count.
    """
    seen: set[str] = set()
    for directory, below, names in os.walk(top, followlinks=True):
        if directory == str(version.parent):
            below[:] = [name for name in below if _is_shared(name) or name == version.name]
            names[:] = [name for name in names if name != CONFIG_FILE]
        real = os.path.realpath(directory)
        if real in seen:
            # A symbolic link has led here again.
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(name for name in below if name != _COMPILED)
        yield from (Path(directory, name) for name in names)


def _is_shared(folder: str) -> bool:
    return not folder.isdigit() and folder != CONFIG_FOLDER
