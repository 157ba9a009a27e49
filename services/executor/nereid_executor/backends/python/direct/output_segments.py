"""Writes large outputs to shared-memory segments that the executor lends and the worker reuses."""

# layout: not compiled, off the hot path

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from nereid.shm.reference import SharedMemory
from nereid.shm.segments import (
    ALIGNMENT,
    DISCARDED,
    FREE,
    IDLE_S,
    IN_USE,
    MAX_WASTE,
    SHM_THRESHOLD_BYTES,
    aligned,
)
from nereid_executor.backends.python.worker_site.nereid_worker.connection import (
    idle_sweeper,
    shared_tensors,
)
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.values.errors import (
    TritonModelException,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Maximum number of granted segments, and maximum bytes of outputs in a granted segment. Larger
# outputs get a segment that is used once.
_MAX_GRANTED: Final = 64
_MAX_GRANTED_BYTES: Final = 1 << 20


class GrantedSegment:
    """A segment of the executor that this process may write to whenever the segment is free."""

    __slots__ = ("memory", "used_at", "view")

    def __init__(self, memory: SharedMemory, view: memoryview) -> None:
        # The part that outputs may fill. The byte with the state lies behind it.
        self.memory = memory._replace(size_bytes=memory.size_bytes - ALIGNMENT)
        self.view = view
        self.used_at = time.monotonic()

    @property
    def state(self) -> int:
        """A constant of nereid.shm.segments, such as FREE."""
        return self.view[-1]

    def use(self) -> None:
        """Mark a free segment as in use. Later the executor marks the segment as free again."""
        self.view[-1] = IN_USE
        self.used_at = time.monotonic()


class OutputSegments:
    """The segments for one stream's outputs."""

    def __init__(
        self,
        request_buffer: Callable[[tuple[int, int, bool]], None],
        in_reader_thread: Callable[[], bool],
        return_buffers: Callable[[list[str]], None],
        *,
        max_granted: int = _MAX_GRANTED,
        idle_s: float = IDLE_S,
    ) -> None:
        """Start without segments.

        request_buffer asks the executor for a buffer: number, bytes, and whether it may be reused.
        in_reader_thread: whether the caller runs in the thread that reads the executor's frames.
        """
        self._request_buffer = request_buffer
        self._in_reader_thread = in_reader_thread
        self._return_buffers = return_buffers
        self._numbers = itertools.count(1)
        # Maps a request's number to the queue that receives the executor's response.
        self._requests: dict[int, queue.SimpleQueue[Any]] = {}
        # The segment that was used last is at the end. The search begins there, so that a few
        # segments serve most outputs and the others become idle.
        self._granted: list[GrantedSegment] = []
        self._max_granted = max_granted
        self._idle_s = idle_s
        self._sweeper = idle_sweeper.IdleSweeper(self._return_idle, idle_s)
        # One thread at a time requests a buffer, and none once the stream has ended. The lock is
        # reentrant: a finaliser may run in a thread that waits for a buffer, and request another
        # one.
        self._lock = threading.RLock()
        # True while a thread chooses a segment. A finaliser that interrupts the choice must not
        # begin another choice.
        self._choosing = False
        self._ended = False

    def on_output_buffer(self, number: int, buffer: list[Any] | None) -> None:
        """Handle the executor's response to a request. Raise WireError for an unknown number."""
        request = self._requests.pop(number, None)
        if request is None:
            raise wire.WireError(f"a buffer for outputs that was not requested: number {number}")
        request.put(buffer)

    def write(self, tensors: Sequence[Any]) -> tuple[SharedMemory | None, Sequence[Any]]:
        """Write outputs to a segment, which the executor keeps until the outputs are read.

        Returns the segment and each output's place in it. If no segment is available, returns None
        and the outputs themselves.
        """
        size_bytes = sum(aligned(len(tensor)) for tensor in tensors)
        granted = self._free_segment(size_bytes)
        if granted is not None:
            offsets, _ = shared_tensors.layout(tensors)
            buffer = granted.memory
            return buffer, shared_tensors.copy_tensors(
                granted.view, tensors, wire.Range(*buffer), offsets
            )
        place = self._acquire_buffer(size_bytes, granted=False)
        if place is not None:
            buffer = SharedMemory(*place)
            placed = shared_tensors.write_outputs(tensors, wire.Range(*buffer))
            if type(placed[0]) is wire.Range:
                return buffer, placed
        return None, tensors

    def close(self) -> None:
        """Forget the granted segments. The executor takes them back at the stream's end."""
        with self._lock:
            self._ended = True
            self._granted.clear()

    def _free_segment(self, size_bytes: int) -> GrantedSegment | None:
        """Return a granted segment that is free and large enough, marked as in use, or None."""
        # The reading thread must not wait for the lock: its holder may wait for a frame that only
        # the reading thread can receive.
        if size_bytes > _MAX_GRANTED_BYTES or not self._lock.acquire(not self._in_reader_thread()):
            return None
        try:
            if self._choosing:
                return None
            self._choosing = True
            try:
                segment = self._fitting(size_bytes)
                if segment is None and self._may_grow():
                    segment = self._request_grant(size_bytes)
            finally:
                self._choosing = False
            return segment
        finally:
            self._lock.release()

    def _fitting(self, size_bytes: int) -> GrantedSegment | None:
        most = MAX_WASTE * max(size_bytes, SHM_THRESHOLD_BYTES)
        granted = self._granted
        for place in range(len(granted) - 1, -1, -1):
            segment = granted[place]
            if segment.state == FREE and size_bytes <= segment.memory.size_bytes <= most:
                segment.use()
                granted.append(granted.pop(place))
                return segment
        return None

    def _may_grow(self) -> bool:
        """Return whether another segment may be granted; if needed, first give a free one back."""
        granted = self._granted
        if len(granted) < self._max_granted:
            return True
        self._granted = granted = [segment for segment in granted if segment.state != DISCARDED]
        unfit = next((segment for segment in granted if segment.state == FREE), None)
        if unfit is not None:
            granted.remove(unfit)
            self._return_buffers([unfit.memory.segment_name])
        return len(granted) < self._max_granted

    def _request_grant(self, size_bytes: int) -> GrantedSegment | None:
        place = self._acquire_buffer(size_bytes, granted=True)
        if place is None:
            return None
        memory = SharedMemory(*place)
        try:
            view = shared_tensors.map_whole(memory.segment_name, writable=True)
        except TritonModelException:
            view = None
        if view is None:
            self._return_buffers([memory.segment_name])
            return None
        segment = GrantedSegment(memory, view)
        self._granted.append(segment)
        self._sweeper.start()
        return segment

    def _return_idle(self) -> bool:
        with self._lock:
            since = time.monotonic() - self._idle_s
            idle = [
                segment
                for segment in self._granted
                if segment.state == FREE and segment.used_at <= since
            ]
            self._granted = [
                segment
                for segment in self._granted
                if segment not in idle and segment.state != DISCARDED
            ]
            if idle and not self._ended:
                with contextlib.suppress(wire.LostError):
                    self._return_buffers([segment.memory.segment_name for segment in idle])
            return bool(self._granted)

    def _acquire_buffer(self, size_bytes: int, *, granted: bool) -> Any:
        # A finaliser may send a response in the reading thread. That thread must not wait for a
        # buffer, because it alone can receive the executor's response.
        if self._in_reader_thread():
            return None
        with self._lock:
            if self._ended:
                return None
            number = next(self._numbers)
            received = self._requests[number] = queue.SimpleQueue()
            self._request_buffer((number, size_bytes, granted))
            return received.get()
