"""A queue of responses from threads of the model to the instance's stream."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import threading
from collections import deque
from typing import TYPE_CHECKING

from nereid_executor.backends.python.worker_site.nereid_worker.runtime.serving import (
    FIRST_COLLECT_S,
    MAX_COLLECT_S,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.rpc import BlockingStream
    from nereid_executor.batch.arrays import Piece

    MemberResponses = Sequence[tuple[int, Sequence[Piece]]]


class ResponseQueue:
    """A queue of responses with their batches' numbers, and the lock of the instance's stream.

    The lock guards the stream. A thread that finds it held leaves responses in the queue for its
    holder. The serving thread holds the lock except while the model executes. No other thread waits
    for it, because finalisers also send responses and may interrupt any code here.
    """

    def __init__(self, deliver: Callable[[int, MemberResponses], None]) -> None:
        """Make an empty queue. deliver writes responses to the stream, with the lock held."""
        self._deliver = deliver
        self._queue: deque[tuple[int, MemberResponses]] = deque()
        self._stream_lock = threading.Lock()
        self._stream_lock.acquire()
        # The lock is reentrant: the garbage collector may finalise a response sender in a thread
        # that holds it.
        self._event_lock = threading.RLock()
        # Wakes the serving thread, which then checks the queue and its own state again.
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def submit_responses(self, batch: int, responses: MemberResponses) -> None:
        """Deliver responses, or leave them in the queue for the thread that holds the lock."""
        self._queue.append((batch, responses))
        if not self._try_deliver():
            self.wake()

    def deliver_all(self) -> None:
        """Deliver all queued responses. The caller must hold the lock."""
        while self._queue:
            self._deliver(*self._queue.popleft())

    def try_lock_stream(self) -> bool:
        """Acquire the stream's lock without waiting; return whether that succeeded."""
        return self._stream_lock.acquire(blocking=False)

    def lock_stream(self) -> None:
        """Wait for the stream's lock. Only the serving thread may call this."""
        self._stream_lock.acquire()

    def unlock_stream(self) -> None:
        """Release the lock, and deliver the responses that were queued while it was held."""
        self._stream_lock.release()
        if self._queue:
            self._try_deliver()

    def _try_deliver(self) -> bool:
        """Deliver all responses if the lock is free; return False if another thread has to."""
        while self._queue:
            if not self._stream_lock.acquire(blocking=False):
                return False
            try:
                self.deliver_all()
            finally:
                self._stream_lock.release()
        return True

    def wake(self) -> None:
        """End wait_for() in the serving thread."""
        with self._event_lock:
            if self._event >= 0:
                os.eventfd_write(self._event, 1)

    def close(self) -> None:
        """Close the event; wake() does nothing after this."""
        with self._event_lock:
            event, self._event = self._event, -1
        os.close(event)

    def wait_for(self, stream: BlockingStream) -> None:
        """Wait until there are responses to deliver or data to read from the stream."""
        if stream.has_input:
            return
        poll = select.poll()
        poll.register(stream, select.POLLIN)
        poll.register(self._event, select.POLLIN)
        pause_s = FIRST_COLLECT_S
        while not poll.poll(pause_s * 1000):
            # A response sender that the model has lost responds with an error when it is collected.
            # In a reference cycle, only the garbage collector collects it.
            gc.collect()
            pause_s = min(2 * pause_s, MAX_COLLECT_S)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
