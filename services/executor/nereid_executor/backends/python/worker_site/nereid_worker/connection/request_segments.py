"""Shared-memory segments for the tensors of requests that a model makes to other models.

A segment cannot shrink, so a reader's mapping stays valid even if this process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from ..protocol.wire import Range
from . import shared_tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

# A segment is reused only for tensors that fill at least 1/_MIN_FILL of it.
_MIN_FILL = 2
# The values are from linux/fcntl.h: the fcntl module of some Python versions lacks them.
_ADD_SEALS = 1033
_SHRINK_AND_GROW = 0x2 | 0x4


class RequestSegment:
    """An anonymous memory file that other processes open by name."""

    __slots__ = ("descriptor", "freed_at", "name", "size", "view")

    def __init__(self, size: int) -> None:
        """Make a segment; raise OSError if the system has no more memory or descriptors."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.descriptor = os.memfd_create("nereid-segment", flags)
        try:
            os.fchmod(self.descriptor, 0o600)
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, _ADD_SEALS, _SHRINK_AND_GROW)
            # None if the segment is very large and therefore not mapped.
            self.view: memoryview | None = None
            if size <= shared_tensors.MAX_KEPT_BYTES:
                # If the system had no memory left at a write to a mapping, the kernel would kill
                # the process.
                os.posix_fallocate(self.descriptor, 0, size)
                self.view = memoryview(mmap.mmap(self.descriptor, size))
        except BaseException:
            os.close(self.descriptor)
            raise
        number = os.fstat(self.descriptor).st_ino
        self.name = f"{os.getpid()}.{self.descriptor}.{number}"
        self.size = size
        self.freed_at = 0.0


class RequestSegmentPool:
    """The segments of this process, up to a total size. Thread-safe."""

    def __init__(self, limit: int, idle_s: float = 0.0) -> None:
        """Make a pool. limit: maximum total bytes. idle_s: lifetime of a free segment."""
        self._limit = limit
        self._idle_s = idle_s
        # The lock is reentrant: a lease may be finalised in a thread that holds the lock.
        self._lock = threading.RLock()
        # The segments are in the order in which they were freed.
        self._free: list[RequestSegment] = []
        self._trim_timer: threading.Timer | None = None
        # Bytes of all segments, used and free.
        self.total = 0

    @property
    def available(self) -> int:
        """Number of bytes, up to the limit, that no lease uses."""
        with self._lock:
            return self._limit - self.total + sum(segment.size for segment in self._free)

    def lend_copy(self, tensors: Sequence[Any]) -> SegmentLease | None:
        """Copy tensors to a segment; return None if they are small or no segment is available."""
        offsets, size = shared_tensors.layout(tensors)
        if not shared_tensors.MIN_BYTES <= size <= self._limit:
            return None
        segment = self._acquire(size)
        if segment is None:
            return None
        lease = SegmentLease(self, segment)
        try:
            buffer = Range(segment.name, 0, size)
            if segment.view is not None:
                lease.places = shared_tensors.copy_tensors(segment.view, tensors, buffer, offsets)
            else:
                lease.places = shared_tensors.write_tensors(
                    segment.descriptor, tensors, buffer, offsets
                )
        except OSError:
            return None
        return lease

    def free(self, segment: RequestSegment) -> None:
        """Keep a segment for reuse. Call this only if no process reads the segment any more."""
        with self._lock:
            segment.freed_at = time.monotonic()
            self._free.append(segment)
            self._schedule_trim()

    def discard(self, segment: RequestSegment) -> None:
        """Close a segment that another process may still read."""
        with self._lock:
            self.total -= segment.size
            segment.view = None
            os.close(segment.descriptor)

    def _acquire(self, size: int) -> RequestSegment | None:
        with self._lock:
            fitting = [
                segment
                for segment in self._free
                if size <= segment.size <= _MIN_FILL * max(size, shared_tensors.MIN_BYTES)
            ]
            if fitting:
                segment = min(fitting, key=lambda candidate: candidate.size)
                self._free.remove(segment)
                return segment
            # The size is rounded up by at most an eighth, so that similar sizes share segments.
            step = 1 << max(12, size.bit_length() - 3)
            size = -(-size // step) * step
            while self._free and self.total + size > self._limit:
                self.discard(self._free.pop(0))
            if self.total + size > self._limit:
                return None
            try:
                segment = RequestSegment(size)
            except OSError:
                return None
            self.total += size
            return segment

    def _schedule_trim(self) -> None:
        if self._trim_timer is None and self._free:
            left_s = self._free[0].freed_at + self._idle_s - time.monotonic()
            timer = threading.Timer(max(0.0, left_s), self._trim)
            timer.daemon = True
            # If the system can start no more threads, the next free() tries again.
            with contextlib.suppress(RuntimeError):
                timer.start()
                self._trim_timer = timer

    def _trim(self) -> None:
        with self._lock:
            since = time.monotonic() - self._idle_s
            while self._free and self._free[0].freed_at <= since:
                self.discard(self._free.pop(0))
            self._trim_timer = None
            self._schedule_trim()


class SegmentLease:
    """A request's use of a segment. If it is collected without free(), the segment is discarded."""

    __slots__ = ("_segment", "_segments", "places")

    def __init__(self, segments: RequestSegmentPool, segment: RequestSegment) -> None:
        self._segments = segments
        self._segment: RequestSegment | None = segment
        self.places: list[Range] = []

    def free(self) -> None:
        """Keep the segment for a later request. Call this only if no process reads it any more."""
        segment, self._segment = self._segment, None
        if segment is not None:
            self._segments.free(segment)

    def __del__(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            with contextlib.suppress(OSError):
                self._segments.discard(segment)
