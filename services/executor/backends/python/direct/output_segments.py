"""Large outputs in segments of the executor, which are asked for when there are such outputs."""

from __future__ import annotations

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
        self, request_buffer: Callable[[int], None], in_reader_thread: Callable[[], bool]
    ) -> None:
        """request_buffer: has the executor respond with a buffer of this size, or without one."""
        self._request_buffer = request_buffer
        self._in_reader_thread = in_reader_thread
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # One thread requests at a time, and none once the stream has ended.
        self._lock = threading.RLock()
        self._ended = False

    def on_output_buffer(self, buffer: list[Any] | None) -> None:
        """The executor's response."""
        self._received.put(buffer)

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
            self._request_buffer(size_bytes)
            return self._received.get()
