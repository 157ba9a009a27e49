"""The table of regions that several gateways of one host share, as files of a directory.

A file describes a region; its name is a number that is used once. Who is about to change the table
holds its lock. A counter in shared memory changes with the table, so that a look costs next to
nothing while nothing has changed. A file is locked for as long as requests of a gateway name its
region: the kernel ends such a lock with its process. Knows nothing of regions.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_COUNTER_BYTES: Final = 8
_LOCK_TIMEOUT_S: Final = 1.0
_LOCK_INTERVAL_S: Final = 0.001


class RegionFile:
    """One file, which this process has open."""

    __slots__ = ("_descriptor", "number")

    def __init__(self, number: int, descriptor: int) -> None:
        self.number = number
        self._descriptor = descriptor

    def read(self) -> bytes:
        """All of it."""
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def hold(self) -> bool:
        """Keep others from removing it until release(); False: it is removed, or about to be."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if os.fstat(self._descriptor).st_nlink:
            return True
        self.release()
        return False

    def hold_alone(self) -> bool:
        """Keep others from holding it; False: another process does."""
        return _try_lock(self._descriptor)

    def release(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """With what it holds; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RegionFiles:
    """The directory, as one process sees it. Raises OSError where the system refuses."""

    def __init__(self, directory: Path, lock_timeout_s: float = _LOCK_TIMEOUT_S) -> None:
        """It is created if it is not there. lock_timeout_s: how long the lock is waited for, which
        is held for microseconds, unless its process is stopped just then.
        """
        self._lock_timeout_s = lock_timeout_s
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._lock = os.open(directory / "table", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._lock, _COUNTER_BYTES)
        self._counter = memoryview(mmap.mmap(self._lock, _COUNTER_BYTES)).cast("Q")
        with self.locked():
            # A process that was killed may have left a change unannounced.
            self._counter[0] += 1

    @property
    def revision(self) -> int:
        """Another one after each change."""
        return self._counter[0]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """No other process changes the table meanwhile. Not to be nested.

        Raises:
            TimeoutError: another process has it locked for longer than any change takes.
        """
        deadline = time.monotonic() + self._lock_timeout_s
        while not _try_lock(self._lock):
            if time.monotonic() > deadline:
                raise TimeoutError("the table of regions is locked")
            time.sleep(_LOCK_INTERVAL_S)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def numbers(self) -> list[int]:
        """Those of all files, oldest first."""
        return sorted(int(name) for name in os.listdir(self._directory) if name.isdecimal())  # noqa: PTH208 - names suffice

    def open(self, number: int) -> RegionFile | None:
        """The file of this number; None: it was removed meanwhile."""
        try:
            descriptor = os.open(self._directory / str(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        return RegionFile(number, descriptor)

    def add(self, text: bytes) -> RegionFile:
        """A new file; call while the table is locked."""
        number = self._counter[0] + 1
        part = self._directory / "part"
        part.write_bytes(text)
        # It is complete when it gets its name.
        part.replace(self._directory / str(number))
        self._counter[0] = number
        added = self.open(number)
        assert added is not None, "removed without the lock"
        return added

    def remove(self, file: RegionFile) -> None:
        """Remove a file that is held alone; call while the table is locked."""
        (self._directory / str(file.number)).unlink(missing_ok=True)
        self._counter[0] += 1

    def close(self) -> None:
        os.close(self._lock)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
