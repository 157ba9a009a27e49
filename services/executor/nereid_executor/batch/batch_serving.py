"""The loop that serves an instance's stream with a BatchRunner: receive, begin, finish, send."""

# layout: compiled

from __future__ import annotations

import time
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_executor.batch.array_batch import ArrayBatch
    from nereid_executor.batch.batch_runner import BatchRunner

# Seconds between polls: the thread cannot wait for a socket and a device at the same time.
_POLL_S: Final = 100e-6


class FrameStream(Protocol):
    """The methods of a BlockingStream that serve_batches() uses."""

    @property
    def ended(self) -> bool:
        """True if no further frame will come."""

    def receive(self) -> bytes | None:
        """Wait for the next frame and return it, or `None` after the end of the stream."""

    def read_messages(self) -> list[bytes]:
        """Return the frames that have arrived, without waiting."""

    def send(self, message: bytes) -> None:
        """Send a frame."""


def serve_batches(stream: FrameStream, runner: BatchRunner, stopping: Callable[[], bool]) -> None:
    """Serve until the stream ends, or until `stopping` is true and begun batches are finished.

    When it returns or raises, no batch executes. Raises RpcError, or ProtocolError and DecodeError
    if the scheduler broke the protocol.
    """
    receive, send = stream.receive, stream.send
    received, read = runner.received, runner.read
    begin, finish = runner.begin, runner.finish
    overlaps = received.depth > 1
    # Frames that were read while the runner could begin no more batches.
    unread: deque[bytes] = deque()
    try:
        while not stopping():
            frame = receive()
            if frame is None:
                return
            batch = begin(read(frame), perf_counter_ns())
            while batch is not None:
                if overlaps and not _begin_more(stream, unread, runner, batch, stopping):
                    return
                reply = finish(batch)
                try:
                    send(reply)
                finally:
                    received.end(batch)
                runner.record_execution(len(reply))
                if runner.traced is not None:
                    runner.record_spans()
                batch = received.oldest() if overlaps else None
    finally:
        runner.abandon()


def _begin_more(
    stream: FrameStream,
    unread: deque[bytes],
    runner: BatchRunner,
    oldest: ArrayBatch,
    stopping: Callable[[], bool],
) -> bool:
    """Begin batches until no more may begin or the oldest is complete; False at stream's end."""
    while runner.received.may_begin and not stopping():
        if not unread:
            unread.extend(stream.read_messages())
        if unread:
            runner.begin(runner.read(unread.popleft()), perf_counter_ns())
        elif stream.ended:
            return False
        elif runner.is_complete(oldest):
            return True
        else:
            time.sleep(_POLL_S)
    return True
