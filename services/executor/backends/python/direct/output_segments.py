"""Large outputs in segments of the executor, which are asked for when there are such outputs."""

from __future__ import annotations

import itertools
import queue
import threading
from typing import TYPE_CHECKING, Any

from nereid.services.executor.backends.python.worker_site.nereid_worker.connection import (
    shared_tensors,
)
from nereid.services.executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class OutputSegments:
    """Those of one stream. Any thread may write outputs; the reading thread receives segments."""

    def __init__(
        self,
        request_buffer: Callable[[tuple[int, int]], None],
        in_reader_thread: Callable[[], bool],
    ) -> None:
        """request_buffer: has the executor respond, to the request of this number, with a buffer of
        this size in bytes, or without one.
        """
        self._request_buffer = request_buffer
        self._in_reader_thread = in_reader_thread
        self._numbers = itertools.count(1)
        # By number: where the responses go.
        self._requests: dict[int, queue.SimpleQueue[Any]] = {}
        # One thread requests at a time, and none once the stream has ended. While it waits, a
        # finaliser that runs in it may request another.
        self._lock = threading.RLock()
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
        given = self._acquire_buffer(sum(aligned(len(each)) for each in tensors))
        if given is not None:
            buffer = SharedMemory(*given)
            placed = shared_tensors.write_outputs(tensors, wire.Range(*buffer))
            if type(placed[0]) is wire.Range:
                return buffer, placed
        return None, tensors

    def close(self) -> None:
        """The stream has ended."""
        with self._lock:
            self._ended = True

    def _acquire_buffer(self, size_bytes: int) -> Any:
        # A finaliser may respond in the thread that would receive the buffer.
        if self._in_reader_thread():
            return None
        with self._lock:
            if self._ended:
                return None
            number = next(self._numbers)
            received = self._requests[number] = queue.SimpleQueue()
            self._request_buffer((number, size_bytes))
            return received.get()
