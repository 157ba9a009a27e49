"""Digests of model files: a file is identified by its content.

Copies and restored backups can have the dates of an older file. A file is read again only if its
size, inode or one of its dates has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import stat
import time
from typing import TYPE_CHECKING, Final

from nereid.bounded_cache import BoundedCache

if TYPE_CHECKING:
    import os
    from pathlib import Path

_MAX_FILES: Final = 4096
# A digest of this many bytes takes 0.15 s of CPU. A gigabyte would add 0.6 s to a first load.
MAX_IDENTIFIED_BYTES: Final = 256 << 20
# Two changes within this time may have the same date.
_DATE_NS: Final = 2_000_000_000

_known: BoundedCache[str, tuple[tuple[int, ...], bytes]] = BoundedCache(_MAX_FILES)


def digest_of(path: Path) -> bytes:
    """Return the digest of a file, or of all files in a directory and their names."""
    if not path.is_dir():
        return _digest_file(path)
    digest = hashlib.sha256()
    for file in sorted(entry for entry in path.rglob("*") if entry.is_file()):
        name = str(file.relative_to(path)).encode("utf-8", "surrogateescape")
        digest.update(b"%d:%b%b" % (len(name), name, _digest_file(file)))
    return digest.digest()


def identity_of(path: Path, max_bytes: int = MAX_IDENTIFIED_BYTES) -> bytes | tuple[int, ...]:
    """Return an identity that is equal for files with equal content, and for no others.

    A file that cannot be read, is not regular, or is larger than max_bytes is identified by its
    size, inode and dates. Raises OSError if the file does not exist.
    """
    status = path.stat()
    regular = stat.S_ISREG(status.st_mode)
    if regular and status.st_size <= max_bytes:
        with contextlib.suppress(OSError):
            return _digest_file(path)
    state = _state_of(status)
    # A young file may change again within the same date, so its identity equals no other.
    is_young = regular and time.time_ns() - status.st_ctime_ns <= _DATE_NS
    return (*state, time.time_ns()) if is_young else state


def _digest_file(path: Path) -> bytes:
    state = _state_of(path.stat())
    known = _known.get(str(path))
    if known is not None and known[0] == state:
        return known[1]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    after = path.stat()
    if _state_of(after) == state and time.time_ns() - after.st_ctime_ns > _DATE_NS:
        _known.remember(str(path), (state, digest))
    return digest


def _state_of(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
