"""Writer's side of shared memory: segments that other processes of this host can map.

A segment is an anonymous memory file of fixed size, named <pid>.<descriptor>.<inode>. The owner
writes, and other processes read through /proc/<pid>/fd. The owner reuses a segment once its readers
are done. If the owner cannot know that, it discards the segment. Mappings stay valid.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import threading
import time
from pathlib import Path
from typing import Final

from nereid.shm.reference import SharedMemory

# A segment is cheaper than the message for tensors of at least this size (docs/decisions/).
SHM_THRESHOLD_BYTES: Final = 1 << 16
ALIGNMENT: Final = 64
IDLE_S: Final = 10.0
_MIN_TRIM_INTERVAL_S: Final = 0.1
# A segment is reused for a tensor only if it is at most this many times larger.
MAX_WASTE: Final = 2
_PAGE: Final = 4096
# Values from linux/fcntl.h.
_ADD_SEALS: Final = 1033
_SHRINK, _GROW, _FUTURE_WRITE = 0x2, 0x4, 0x10
# States of a granted segment, in its last byte. The holder of the grant sets IN_USE when it writes
# to a free segment. The owner sets the other states.
IN_USE, FREE, DISCARDED = 0, 1, 2
SIZE_SEALS: Final = _SHRINK | _GROW


def shm_namespace(limit_bytes: int) -> str:
    """Return a text that is equal in two processes if they can open each other's segments.

    The text is empty in a process that shares no memory.
    """
    if not limit_bytes or not hasattr(os, "memfd_create"):
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("pid", "user")]
        status = Path("/proc/self/status").read_text()
    except OSError:
        return ""
    rights = next((line[7:].strip() for line in status.splitlines() if line[:7] == "CapPrm:"), "")
    return "/".join(map(str, (boot, *spaces, os.getuid(), os.getgid(), rights)))


def trim_interval_s(idle_s: float) -> float:
    """Return the seconds between two calls of SegmentPool.trim()."""
    return max(idle_s / 2, _MIN_TRIM_INTERVAL_S)


def aligned(size_bytes: int) -> int:
    """Round an offset up to the next one at which a tensor may start."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def segment_owner(segment_name: str) -> str:
    """Return the id of the process that owns a segment."""
    return segment_name.partition(".")[0]


class Segment:
    """Memory of this process that other processes can map."""

    __slots__ = ("descriptor", "freed_at", "granted", "name", "size_bytes", "user", "view")

    def __init__(self, size_bytes: int, *, writable: bool = False) -> None:
        """Create a segment; `writable` lets this user's processes write. May raise OSError."""
        self.descriptor = os.memfd_create("nereid-segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(self.descriptor, stat.S_IRUSR | stat.S_IWUSR)
            os.ftruncate(self.descriptor, size_bytes)
            fcntl.fcntl(self.descriptor, _ADD_SEALS, SIZE_SEALS)
            self.view = memoryview(mmap.mmap(self.descriptor, size_bytes))
            if not writable:
                with contextlib.suppress(OSError):
                    # With this seal no process can make another writable mapping. Linux has it
                    # since 5.1.
                    fcntl.fcntl(self.descriptor, _ADD_SEALS, _FUTURE_WRITE)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.size_bytes = size_bytes
        inode = os.fstat(self.descriptor).st_ino
        self.name = f"{os.getpid()}.{self.descriptor}.{inode}"
        self.freed_at = 0.0
        # Object for which the segment was taken from the pool.
        self.user: object = None
        # True after the segment was granted to another process, until it is discarded.
        self.granted = False

    def range(self, offset: int, size_bytes: int) -> SharedMemory:
        """Return a reference to a part of the segment."""
        return SharedMemory(self.name, offset, size_bytes)

    def close(self) -> None:
        """Close the segment. All mappings of it stay valid."""
        if self.granted:
            self.view[-1] = DISCARDED
        os.close(self.descriptor)
        self.view = memoryview(b"")


class SegmentPool:
    """Pool of segments with a size limit. Several threads may use it."""

    def __init__(self, limit_bytes: int, *, writable: bool = False) -> None:
        self._limit_bytes = limit_bytes
        self._writable = writable
        # Reentrant: while this thread holds the lock, the garbage collector may delete a lease,
        # which discards a segment.
        self._lock = threading.RLock()
        self._taken: dict[str, Segment] = {}
        # Ordered by the time at which the segments became free.
        self._free: list[Segment] = []
        self.total_bytes = 0

    @property
    def used_count(self) -> int:
        """Number of segments in use, without granted segments that are free."""
        with self._lock:
            return sum(
                not (segment.granted and segment.view[-1] == FREE)
                for segment in self._taken.values()
            )

    def acquire_segment(self, size_bytes: int, user: object = None) -> Segment | None:
        """Take a segment of at least this size for `user`; return None if the pool is full."""
        with self._lock:
            segment = self._fitting(size_bytes) or self._new(size_bytes)
            if segment is not None:
                segment.user = user
                self._taken[segment.name] = segment
            return segment

    def grant_segment(self, size_bytes: int, user: object) -> Segment | None:
        """Take a segment and grant it to another process until discard(), or return None."""
        with self._lock:
            segment = self.acquire_segment(size_bytes + ALIGNMENT, user)
            if segment is not None:
                segment.view[-1] = IN_USE
                segment.granted = True
            return segment

    def free_segment(self, name: str) -> None:
        """Make a segment available again, because nobody reads it; no-op if not in use."""
        with self._lock:
            segment = self._taken.get(name)
            if segment is not None and segment.granted:
                segment.view[-1] = FREE
            elif segment is not None:
                del self._taken[name]
                segment.user = None
                segment.freed_at = time.monotonic()
                self._free.append(segment)

    def discard(self, name: str) -> None:
        """Close a segment that may still be read. It is not used again."""
        with self._lock:
            self._close(self._taken.pop(name, None))

    def discard_granted(self, name: str, user: object) -> None:
        """Close a segment if it was granted for this user; no-op for other segments."""
        with self._lock:
            segment = self._taken.get(name)
            if segment is not None and segment.granted and segment.user is user:
                self.discard(name)

    def discard_segments_of(self, user: object) -> None:
        """Discard the segments that were taken for this user."""
        with self._lock:
            for name in [taken.name for taken in self._taken.values() if taken.user is user]:
                self._close(self._taken.pop(name))

    def trim(self, idle_s: float) -> None:
        """Close the segments that have been free for `idle_s`."""
        with self._lock:
            since = time.monotonic() - idle_s
            while self._free and self._free[0].freed_at <= since:
                self._close(self._free.pop(0))

    def _fitting(self, size_bytes: int) -> Segment | None:
        most = MAX_WASTE * max(size_bytes, SHM_THRESHOLD_BYTES)
        best = None
        for segment in reversed(self._free):
            if size_bytes <= segment.size_bytes <= most and (
                best is None or segment.size_bytes < best.size_bytes
            ):
                best = segment
        if best is not None:
            self._free.remove(best)
        return best

    def _new(self, size_bytes: int) -> Segment | None:
        # Round up by at most an eighth, so that similar tensors can use the same segments.
        # Unwritten memory costs nothing.
        step = max(_PAGE, 1 << max(0, size_bytes.bit_length() - 3))
        size_bytes = -(-size_bytes // step) * step
        while self._free and self.total_bytes + size_bytes > self._limit_bytes:
            self._close(self._free.pop(0))
        if self.total_bytes + size_bytes > self._limit_bytes:
            return None
        try:
            segment = Segment(size_bytes, writable=self._writable)
        except OSError:
            return None
        self.total_bytes += size_bytes
        return segment

    def _close(self, segment: Segment | None) -> None:
        if segment is not None:
            self.total_bytes -= segment.size_bytes
            segment.close()


class Lease:
    """Lease of a segment for one request. If deleted before free(), it discards the segment."""

    __slots__ = ("_held", "_segments", "segment")

    def __init__(self, segments: SegmentPool, segment: Segment) -> None:
        self._held = True
        self._segments = segments
        self.segment = segment

    def free(self) -> None:
        """Return the segment to the pool, because nobody reads it any more."""
        if self._held:
            self._held = False
            self._segments.free_segment(self.segment.name)

    def __del__(self) -> None:
        if self._held:
            self._segments.discard(self.segment.name)
