"""Large outputs in segments of the executor, which the worker gets once and uses again and again.

The executor marks a segment free, in its last byte, when the response has been read. It grants
another when none is free. What is free for a while is returned.
"""

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
from nereid_executor.backends.python.worker_site.nereid_worker.pb_utils.errors import (
    TritonModelException,
)
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Further outputs, and larger ones, get a segment that is used once.
_MAX_GRANTED: Final = 64
_MAX_GRANTED_BYTES: Final = 1 << 20


class GrantedSegment:
    """A segment of the executor that this process writes to each time that it is free."""

    __slots__ = ("memory", "used_at", "view")

    def __init__(self, memory: SharedMemory, view: memoryview) -> None:
        # What outputs may fill of it; the state is behind.
        self.memory = memory._replace(size_bytes=memory.size_bytes - ALIGNMENT)
        self.view = view
        self.used_at = time.monotonic()

    @property
    def state(self) -> int:
        return self.view[-1]

    def use(self) -> None:
        """Take it, which is free; the executor says when it is again."""
        self.view[-1] = IN_USE
        self.used_at = time.monotonic()


class OutputSegments:
    """Those of one stream. Any thread may write outputs; the reading thread receives segments."""

    def __init__(
        self,
        request_buffer: Callable[[tuple[int, int, bool]], None],
        in_reader_thread: Callable[[], bool],
        return_buffers: Callable[[list[str]], None],
        *,
        max_granted: int = _MAX_GRANTED,
        idle_s: float = IDLE_S,
    ) -> None:
        """request_buffer: has the executor respond, to the request of this number, with a buffer of
        this size in bytes, or without one; granted, if the last is true. return_buffers: of these
        names, which were granted.
        """
        self._request_buffer = request_buffer
        self._in_reader_thread = in_reader_thread
        self._return_buffers = return_buffers
        self._numbers = itertools.count(1)
        # By number: where the responses go.
        self._requests: dict[int, queue.SimpleQueue[Any]] = {}
        # Those used last at the end, so that a few are used again and again.
        self._granted: list[GrantedSegment] = []
        self._max_granted = max_granted
        self._idle_s = idle_s
        self._sweeper = idle_sweeper.IdleSweeper(self._return_idle, idle_s)
        # One thread requests at a time, and none once the stream has ended. While it waits, a
        # finaliser that runs in it may request another.
        self._lock = threading.RLock()
        # A finaliser may interrupt the choice of a segment.
        self._choosing = False
        self._ended = False

    def on_output_buffer(self, number: int, buffer: list[Any] | None) -> None:
        """The executor's response; raises WireError: it responds to nothing."""
        request = self._requests.pop(number, None)
        if request is None:
            raise wire.WireError(f"a buffer for outputs that was not requested: number {number}")
        request.put(buffer)

    def write(self, tensors: Sequence[Any]) -> tuple[SharedMemory | None, Sequence[Any]]:
        """Write outputs to a segment, which the executor keeps until they are read: the segment,
        and their places in it; None, and the outputs: there is none.
        """
        size_bytes = sum(aligned(len(each)) for each in tensors)
        granted = self._free_segment(size_bytes)
        if granted is not None:
            offsets, _ = shared_tensors.layout(tensors)
            buffer = granted.memory
            return buffer, shared_tensors.copy_tensors(
                granted.view, tensors, wire.Range(*buffer), offsets
            )
        given = self._acquire_buffer(size_bytes, granted=False)
        if given is not None:
            buffer = SharedMemory(*given)
            placed = shared_tensors.write_outputs(tensors, wire.Range(*buffer))
            if type(placed[0]) is wire.Range:
                return buffer, placed
        return None, tensors

    def close(self) -> None:
        """The stream has ended, and with it what the executor granted."""
        with self._lock:
            self._ended = True
            self._granted.clear()

    def _free_segment(self, size_bytes: int) -> GrantedSegment | None:
        """A granted segment for outputs of this size, taken; None: they get one of their own."""
        # The reading thread must not wait for one that waits for what it is to receive.
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
        """Return whether another may be granted; a free one of the wrong size is returned."""
        granted = self._granted
        if len(granted) < self._max_granted:
            return True
        self._granted = granted = [each for each in granted if each.state != DISCARDED]
        unfit = next((each for each in granted if each.state == FREE), None)
        if unfit is not None:
            granted.remove(unfit)
            self._return_buffers([unfit.memory.segment_name])
        return len(granted) < self._max_granted

    def _request_grant(self, size_bytes: int) -> GrantedSegment | None:
        given = self._acquire_buffer(size_bytes, granted=True)
        if given is None:
            return None
        memory = SharedMemory(*given)
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
        """Return what was not used for a while; whether anything is left."""
        with self._lock:
            since = time.monotonic() - self._idle_s
            idle = [each for each in self._granted if each.state == FREE and each.used_at <= since]
            self._granted = [
                each for each in self._granted if each not in idle and each.state != DISCARDED
            ]
            if idle and not self._ended:
                with contextlib.suppress(wire.LostError):
                    self._return_buffers([each.memory.segment_name for each in idle])
            return bool(self._granted)

    def _acquire_buffer(self, size_bytes: int, *, granted: bool) -> Any:
        # A finaliser may respond in the thread that would receive the buffer.
        if self._in_reader_thread():
            return None
        with self._lock:
            if self._ended:
                return None
            number = next(self._numbers)
            received = self._requests[number] = queue.SimpleQueue()
            self._request_buffer((number, size_bytes, granted))
            return received.get()
