"""Digests of model files: a file is what is in it, whatever its name and dates say.

Copies that keep dates, restored backups and clocks that were set give a new file the size and date
of the old one. A file is read again only where its size, inode or either date has changed, and one
that is too large to be read just to know it is told from another by those.
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
# 0.15 s of CPU; a gigabyte would be 0.6 s of each first load.
MAX_IDENTIFIED_BYTES: Final = 256 << 20
# Changes so shortly after one another may have one date.
_DATE_NS: Final = 2_000_000_000

# By path: its state, and the digest.
_known: BoundedCache[str, tuple[tuple[int, ...], bytes]] = BoundedCache(_MAX_FILES)


def digest_of(path: Path) -> bytes:
    """The digest of a file, or of all files in a directory and their names.

    Raises:
        OSError: it cannot be read.
    """
    if not path.is_dir():
        return _digest_file(path)
    digest = hashlib.sha256()
    for file in sorted(each for each in path.rglob("*") if each.is_file()):
        name = str(file.relative_to(path)).encode("utf-8", "surrogateescape")
        digest.update(b"%d:%b%b" % (len(name), name, _digest_file(file)))
    return digest.digest()


def identity_of(path: Path, max_bytes: int = MAX_IDENTIFIED_BYTES) -> bytes | tuple[int, ...]:
    """Return what two files with the same content have in common, and others have not.

    A file that is no regular one, may not be read or has more than max_bytes is known by its state.

    Raises:
        OSError: it is not there.
    """
    found = path.stat()
    regular = stat.S_ISREG(found.st_mode)
    if regular and found.st_size <= max_bytes:
        with contextlib.suppress(OSError):
            return _digest_file(path)
    state = _state_of(found)
    # No other state is that of a file which may yet change without another date.
    is_young = regular and time.time_ns() - found.st_ctime_ns <= _DATE_NS
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


def _state_of(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
