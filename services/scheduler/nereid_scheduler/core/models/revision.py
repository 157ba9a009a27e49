"""Revision of a version: a digest of its configuration and files, by which changes are noticed.

Files count by name, size and times: reading them would take as long as a load. The inode's change
time is included, as a copy may keep the other times. Instance groups and the version policy do not
count, as they do not change responses.
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


# The digest has the fields of configurations, not their files.
CONFIG_FILE: Final = "config.pbtxt"
CONFIG_FOLDER: Final = "configs"
# Python writes it when it loads a model.py.
_COMPILED: Final = "__pycache__"
_SIZE_BYTES: Final = 16


def revision_of(config: config_pb.ModelConfig, files: bytes) -> bytes:
    """Return the revision: 16 bytes, which change if the configuration or a file changes."""
    counted = model_config_pb2.ModelConfig()
    counted.CopyFrom(config)
    for field in ("instance_group", "version_policy"):
        counted.ClearField(field)
    text = counted.SerializeToString(deterministic=True)
    framed = b"%d:%s%s" % (len(files), files, text)
    return hashlib.blake2b(framed, digest_size=_SIZE_BYTES).digest()


# Path of a file, and a text with its size and times.
FileState = tuple[str, str]


def digest_files(version_path: str, *, beside: bool = True) -> bytes:
    """Return a 16-byte digest of a version's files. beside: with files that versions share."""
    return digest_states(version_path, file_states(version_path, beside=beside))


def file_states(version_path: str, *, beside: bool = True) -> list[FileState]:
    """Return the states of a version's files, by path. beside: with files that versions share."""
    root = Path(version_path)
    return states_of(sorted(_files(root, root.parent if beside else root)))


def states_of(paths: Iterable[Path]) -> list[FileState]:
    """Return the states of files, without those that cannot be read."""
    states: list[FileState] = []
    for path in paths:
        try:
            states.append(file_state(path))
        except OSError:
            # The file was just deleted or is unreadable, which the load will report.
            continue
    return states


def file_state(path: Path) -> FileState:
    """Return the state of a file. May raise OSError."""
    status = path.stat()
    return str(path), f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns};"


def digest_states(version_path: str, states: Iterable[FileState]) -> bytes:
    """Return a digest of 16 bytes of a version's files in these states."""
    digest = hashlib.blake2b(digest_size=_SIZE_BYTES)
    for path, state in states:
        name = os.fsencode(os.path.relpath(path, version_path))
        digest.update(b"%d:%s:%s" % (len(name), name, state.encode()))
    return digest.digest()


def _files(version: Path, top: Path) -> Iterator[Path]:
    """Yield the files of a version, and those that all versions share if `top` is its parent."""
    seen: set[str] = set()
    for directory, below, names in os.walk(top, followlinks=True):
        if directory == str(version.parent):
            below[:] = [name for name in below if _is_shared(name) or name == version.name]
            names[:] = [name for name in names if not is_config_file(name)]
        real = os.path.realpath(directory)
        if real in seen:
            # A symbolic link leads to a directory that was seen before.
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(name for name in below if name != _COMPILED)
        yield from (Path(directory, name) for name in names)


def overlay_file(profile: str) -> str:
    """Return the name of a profile's overlay, which is merged over a model's configuration."""
    return f"config.{profile}.pbtxt"


def is_config_file(name: str) -> bool:
    """Return whether a file beside the versions is a configuration, or an overlay of one."""
    return name.startswith("config.") and name.endswith(".pbtxt")


def _is_shared(folder: str) -> bool:
    return not folder.isdigit() and folder != CONFIG_FOLDER
