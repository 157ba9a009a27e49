"""Serves an instance's stream with a PipelinedRunner: batches begin while others execute."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.services.executor.batch.pipelined_runner import PipelinedRunner

# How long a further batch, or the end of the one that executes, may go unnoticed: nothing wakes a
# thread that waits for a socket and a device.
_POLL_S: Final = 100e-6


class FrameStream(Protocol):
    """A BlockingStream, as far as it is needed."""

    @property
    def ended(self) -> bool: ...
    def receive(self) -> bytes | None: ...
    def read_messages(self) -> list[bytes]: ...
    def send(self, message: bytes) -> None: ...


def serve_pipelined(
    stream: FrameStream,
    runner: PipelinedRunner,
    stopping: Callable[[], bool],
    set_busy: Callable[[bool], None],
    on_batch: Callable[[], None],
) -> None:
    """Until the stream ends, or the batches in flight have been finished once `stopping` is true.

    Whatever happens, nothing is in flight afterwards. Raises RpcError.
    """
    received: deque[bytes] = deque()
    try:
        while runner.in_flight or not stopping():
            begins = runner.can_begin and not stopping()
            if begins and not received and not _receive(stream, runner, received):
                return
            if begins and received:
                set_busy(True)
                runner.begin(received.popleft())
                if not runner.in_flight:
                    set_busy(False)  # It was withdrawn.
            elif begins and not runner.is_complete():
                time.sleep(_POLL_S)
            else:
                stream.send(runner.finish())
                on_batch()
                set_busy(runner.in_flight > 0)
                if runner.traced is not None:
                    runner.record_spans()
    finally:
        runner.abandon()


def _receive(stream: FrameStream, runner: PipelinedRunner, received: deque[bytes]) -> bool:
    """Receive what is there, or one frame if nothing is in flight; False: the stream has ended."""
    if not runner.in_flight:
        frame = stream.receive()
        if frame is not None:
            received.append(frame)
        return frame is not None
    received.extend(stream.read_messages())
    return bool(received) or not stream.ended
