"""Table of regions that several gateways of one host share, as files in a directory.

A file's name is a number that is never used again. A gateway holds the table's lock while it
changes the table. A counter in shared memory changes with the table, so a look at an unchanged
table is cheap. Requests lock the files of their regions, and the kernel unlocks them when the
process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_COUNTER_BYTES: Final = 8
_LOCK_TIMEOUT_S: Final = 1.0
_LOCK_INTERVAL_S: Final = 0.001
# The mode of a marked file. A mode needs no second file, and ends with its file.
_MARKED: Final = stat.S_IRUSR


class RegionFile:
    """One file of the table, opened by this process."""

    __slots__ = ("_descriptor", "number")

    def __init__(self, number: int, descriptor: int) -> None:
        self.number = number
        self._descriptor = descriptor

    def read(self) -> bytes:
        """Return the whole contents of the file."""
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def hold(self) -> bool:
        """Keep the file from removal until release(). Return False if it is removed already."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if os.fstat(self._descriptor).st_nlink:
            return True
        self.release()
        return False

    def mark(self) -> None:
        """Mark the file for removal when no process holds it. All processes see the mark."""
        os.fchmod(self._descriptor, _MARKED)

    @property
    def marked(self) -> bool:
        """True if the file is to be removed when no process holds it."""
        return stat.S_IMODE(os.fstat(self._descriptor).st_mode) == _MARKED

    def hold_alone(self) -> bool:
        """Keep other processes from holding the file. Return False if another one holds it."""
        return _try_lock(self._descriptor)

    def release(self) -> None:
        """End this process's hold of the file."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file and end its hold. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RegionFiles:
    """Directory of region files, as one process sees it. Methods may raise OSError."""

    def __init__(self, directory: Path, lock_timeout_s: float = _LOCK_TIMEOUT_S) -> None:
        """Open the directory, and create it if it does not exist.

        lock_timeout_s: maximum wait for the lock. A process holds the lock for microseconds, unless
        the process is stopped.
        """
        self._lock_timeout_s = lock_timeout_s
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._lock = os.open(directory / "table", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._lock, _COUNTER_BYTES)
        self._counter = memoryview(mmap.mmap(self._lock, _COUNTER_BYTES)).cast("Q")
        with self.locked():
            # A process that was killed may have changed the table without changing the counter.
            self._counter[0] += 1

    @property
    def revision(self) -> int:
        """Number that changes whenever the table changes."""
        return self._counter[0]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from changing the table within the context. Contexts must not nest.

        Raises TimeoutError if another process holds the lock for longer than any change takes.
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
        """Return the numbers of all files, the oldest file first."""
        return sorted(int(name) for name in os.listdir(self._directory) if name.isdecimal())  # noqa: PTH208 - names suffice

    def open(self, number: int) -> RegionFile | None:
        """Open the file of this number; return `None` if it was removed meanwhile."""
        try:
            descriptor = os.open(self._directory / str(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        return RegionFile(number, descriptor)

    def add(self, text: bytes) -> RegionFile:
        """Add a file with this text; call while the table is locked."""
        number = self._counter[0] + 1
        part = self._directory / "part"
        part.write_bytes(text)
        # A file gets its final name only with complete contents.
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
        """Close the table; the open files of regions stay open."""
        os.close(self._lock)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
