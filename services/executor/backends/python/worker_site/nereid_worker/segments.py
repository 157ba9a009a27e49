"""Memory of this process that others can read: where the tensors of a model's own requests lie.

A segment is an anonymous file that can neither shrink nor grow, so that who has it open may read it
whatever becomes of this process. Once its request is answered it is free for the next one; where
somebody may still be reading it, it is let go of instead. The kernel frees what nobody has open.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from . import memory
from .wire import Range

if TYPE_CHECKING:
    from collections.abc import Sequence

# A segment is taken again for what fills at least this part of it.
_LEAST_FILL = 2
# The fcntl module has no names for these everywhere (linux/fcntl.h).
_ADD_SEALS = 1033
_SHRINK_AND_GROW = 0x2 | 0x4


class Segment:
    """A piece of memory. Its name says where others find it, as nereid.shm.segments has it."""

    __slots__ = ("descriptor", "freed_at", "name", "size")

    def __init__(self, size: int) -> None:
        """Raises OSError when the system has no more memory or descriptors."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.descriptor = os.memfd_create("nereid-segment", flags)
        try:
            os.fchmod(self.descriptor, 0o600)
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, _ADD_SEALS, _SHRINK_AND_GROW)
        except BaseException:
            os.close(self.descriptor)
            raise
        number = os.fstat(self.descriptor).st_ino
        self.name = f"{os.getpid()}.{self.descriptor}.{number}"
        self.size = size
        self.freed_at = 0.0


class Segments:
    """All of them, within a bound. May be used from several threads."""

    def __init__(self, limit: int, idle_s: float = 0.0) -> None:
        """limit: how many bytes; 0: there are none. idle_s: how long to keep what nobody uses."""
        self._limit = limit
        self._idle_s = idle_s
        # The collector may end a lease in the midst of all this.
        self._lock = threading.RLock()
        # Oldest first.
        self._free: list[Segment] = []
        self._tidying: threading.Timer | None = None
        # Of all segments, taken and free.
        self.total = 0

    def lend(self, tensors: Sequence[Any]) -> Lease | None:
        """A copy of tensors that others can read; None: they are small, or there is no room."""
        offsets, size = memory.places(tensors)
        if not memory.LEAST_BYTES <= size <= self._limit:
            return None
        segment = self._take(size)
        if segment is None:
            return None
        lease = Lease(self, segment)
        try:
            room = Range(segment.name, 0, size)
            lease.places = memory.write(segment.descriptor, tensors, room, offsets)
        except OSError:
            # There is no memory for all of it at once.
            return None
        return lease

    def free(self, segment: Segment) -> None:
        """Nobody reads it any more."""
        with self._lock:
            segment.freed_at = time.monotonic()
            self._free.append(segment)
            self._tidy_later()

    def discard(self, segment: Segment) -> None:
        """Somebody may still read it."""
        with self._lock:
            self.total -= segment.size
            os.close(segment.descriptor)

    def _take(self, size: int) -> Segment | None:
        with self._lock:
            fitting = [
                each
                for each in self._free
                if size <= each.size <= _LEAST_FILL * max(size, memory.LEAST_BYTES)
            ]
            if fitting:
                segment = min(fitting, key=lambda each: each.size)
                self._free.remove(segment)
                return segment
            # An eighth of slack lets tensors that differ a little share segments.
            step = 1 << max(12, size.bit_length() - 3)
            size = -(-size // step) * step
            while self._free and self.total + size > self._limit:
                self.discard(self._free.pop(0))
            if self.total + size > self._limit:
                return None
            try:
                segment = Segment(size)
            except OSError:
                return None
            self.total += size
            return segment

    def _tidy_later(self) -> None:
        if self._tidying is None and self._free:
            left_s = self._free[0].freed_at + self._idle_s - time.monotonic()
            timer = threading.Timer(max(0.0, left_s), self._tidy)
            timer.daemon = True
            # Too many threads: the next time will do.
            with contextlib.suppress(RuntimeError):
                timer.start()
                self._tidying = timer

    def _tidy(self) -> None:
        with self._lock:
            since = time.monotonic() - self._idle_s
            while self._free and self._free[0].freed_at <= since:
                self.discard(self._free.pop(0))
            self._tidying = None
            self._tidy_later()


class Lease:
    """A segment in the hands of one request; when nobody holds the lease, it is let go of."""

    __slots__ = ("_segment", "_segments", "places")

    def __init__(self, segments: Segments, segment: Segment) -> None:
        self._segments = segments
        self._segment: Segment | None = segment
        # Of the tensors in it.
        self.places: list[Range] = []

    def free(self) -> None:
        """Nobody reads the segment any more: the next request may have it."""
        segment, self._segment = self._segment, None
        if segment is not None:
            self._segments.free(segment)

    def __del__(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            with contextlib.suppress(OSError):
                self._segments.discard(segment)
