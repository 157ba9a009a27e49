"""Digests of model files: a file is what is in it, whatever its name and dates say.

Copies that keep dates, restored backups and clocks that were set give a new file the size and date
of the old one. A file is read again only where its size, inode or either date has changed.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Final

from nereid.core.bounded_cache import BoundedCache

if TYPE_CHECKING:
    import os
    from pathlib import Path

_MAX_FILES: Final = 1024
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


def _state_of(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
