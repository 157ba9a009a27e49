"""Safe reading of a model repository: opening a pipe without a writer would wait for ever."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

# Far above the size of any configuration, label file or source file.
SMALL_FILE_BYTES: Final = 64 << 20


def read_regular_file(path: Path, limit: int = SMALL_FILE_BYTES) -> bytes:
    """Return a regular file's content; raise OSError above `limit` bytes. Links are followed."""
    with open_regular_file(path) as file:
        data = read_up_to(file, limit)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes", str(path))
    return data


def read_up_to(file: BufferedReader, limit: int) -> bytes:
    """Return a file's content, or its first `limit` + 1 bytes.

    BufferedReader.read() allocates all that it is asked for, and most files are small.
    """
    size_bytes = os.fstat(file.fileno()).st_size
    data = file.read(min(size_bytes, limit) + 1)
    if len(data) > size_bytes:
        # The file has grown, or has no size, as in /proc.
        data += file.read(limit + 1 - len(data))
    return data


def open_regular_file(path: Path) -> BufferedReader:
    """Open a regular file for reading; raise OSError for any other. Links are followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def find_special_file(path: Path) -> Path | None:
    """Return a pipe or device at or below a path, or None.

    A library that opened it could wait or read for ever.
    """
    for entry in (path, *_entries(path)):
        with suppress(OSError):
            mode = entry.stat().st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                return entry
    return None


def _entries(directory: Path) -> Iterator[Path]:
    for place, _, names in os.walk(directory):
        yield from (Path(place, name) for name in names)
