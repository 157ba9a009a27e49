"""Files of a model repository, which may be anything: a pipe that nobody writes to, a device."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

# Far above any configuration, labels or source file.
SMALL_FILE_BYTES: Final = 64 << 20


def read_regular_file(path: Path, limit: int = SMALL_FILE_BYTES) -> bytes:
    """The content of a file, or of one that a link leads to; never waits for other processes.

    Raises:
        OSError: it cannot be read, is no regular file, or has more bytes than the limit.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes", str(path))
    return data
