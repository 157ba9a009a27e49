"""Locks on files that processes of one host share; a process that is killed loses its locks."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from nereid.object_store.errors import FetchCancelledError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from pathlib import Path

_PAUSE_S: Final = 0.05


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """Lock a file, and return a descriptor that holds the lock; `None` if somebody else has it.

    The descriptor refers to the file that is now at this path, not to one that was just deleted.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextmanager
def locked(path: Path, cancelled: threading.Event | None = None) -> Iterator[int]:
    """Hold the exclusive lock in the block; raise FetchCancelledError if cancelled first."""
    while (descriptor := try_lock(path)) is None:
        wait_for_lock(cancelled)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def wait_for_lock(cancelled: threading.Event | None) -> None:
    """Pause, because flock() cannot be cancelled; raise FetchCancelledError if cancelled."""
    if cancelled is None:
        time.sleep(_PAUSE_S)
    elif cancelled.wait(_PAUSE_S):
        raise FetchCancelledError("the files are not needed any more")


def _is_at(path: Path, descriptor: int) -> bool:
    own = os.fstat(descriptor)
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)
