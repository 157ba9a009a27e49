"""What a worker that serves its own stream answers to a batch, part by part.

Response senders may answer after execute() has returned, from any thread, also while the next one
runs. Knows no stream but as something to wait for.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from nereid.services.executor.backends.python.worker_site.nereid_worker import wire
from nereid.services.executor.backends.python.worker_site.nereid_worker.channel import is_forked
from nereid.services.executor.backends.python.worker_site.nereid_worker.serving import (
    FIRST_SWEEP_S,
    LONGEST_SWEEP_S,
)
from nereid.services.executor.batch.responses import put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nereid.core.classification import Classification
    from nereid.pb import nereid_pb2 as pb
    from nereid.rpc import BlockingStream
    from nereid.services.executor.backends.python.worker_site.nereid_worker.tasks import Execution
    from nereid.services.executor.batch.arrays import Piece

    # Members' answers, in pieces.
    Told = Mapping[int, Sequence[Piece]]


class UnderWay:
    """A batch, until all of its members are answered; by place, None: not yet."""

    __slots__ = ("classes", "execution", "open", "responses", "until_ns")

    def __init__(self, execution: Execution, wire_responses: list[Sequence[Piece] | None]) -> None:
        self.execution = execution
        self.responses = wire_responses
        self.open = len(wire_responses)
        # The latest of its members' deadlines (time.monotonic_ns); 0: one has none.
        self.until_ns = 0
        # Which outputs a member wants as classes.
        self.classes: dict[int, Mapping[str, Classification]] = {}

    def take(self) -> list[tuple[int, Sequence[Piece]]]:
        """The answers that were not taken before, with their places."""
        taken = [(place, told) for place, told in enumerate(self.responses) if told]
        for place, _ in taken:
            self.responses[place] = ()
        self.open -= len(taken)
        return taken


def partial(executed: pb.Executed, wire_responses: Iterable[tuple[int, Sequence[Piece]]]) -> bytes:
    """A message that answers some of a batch's members."""
    executed.partial = True
    for place, told in wire_responses:
        put(executed, place, told)
    return executed.SerializeToString()


class Sent:
    """What responses' senders send, from any thread, until it is delivered.

    Who delivers, or reads the stream, has the pen. The thread that serves lends it out only while
    it executes; who finds it taken leaves what he has to who has it. So nobody waits for the pen
    but the thread that serves: finalisers send, too, and may run in the midst of all this.
    """

    def __init__(self, deliver: Callable[[int, Told], None]) -> None:
        """deliver: called by who has the pen. Made by the thread that serves, which has it now."""
        self._deliver = deliver
        self._sent: deque[tuple[int, Told]] = deque()
        self._pen = threading.Lock()
        self._pen.acquire()
        # The collector may have a lost sender answer in the midst of a ring.
        self._lock = threading.RLock()
        # Readable when there is something, or something else to see.
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def put(self, number: int, told: Told) -> None:
        """Deliver the answers to members of this batch, or leave it to who has the pen."""
        self._sent.append((number, told))
        if not self._flush():
            self.ring()

    def deliver(self) -> None:
        """Deliver what there is, with the pen in hand."""
        while self._sent:
            self._deliver(*self._sent.popleft())

    def take_pen(self) -> bool:
        """Whether it was there to take."""
        return self._pen.acquire(blocking=False)

    def lend_pen(self) -> None:
        """Let others have it; with what they have left."""
        self._pen.release()
        if self._sent:
            self._flush()

    def want_pen(self) -> None:
        """Wait for it."""
        self._pen.acquire()

    def _flush(self) -> bool:
        """Whether nothing is left that nobody else sees to."""
        while self._sent:
            if not self._pen.acquire(blocking=False):
                return False
            try:
                self.deliver()
            finally:
                self._pen.release()
        return True

    def ring(self) -> None:
        with self._lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        with self._lock:
            bell, self._bell = self._bell, -1
        os.close(bell)

    def wait(self, stream: BlockingStream) -> None:
        """Until there is something to deliver, or to take from the stream."""
        if stream.holds:
            return
        poll = select.poll()
        poll.register(stream, select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        pause_s = FIRST_SWEEP_S
        while not poll.poll(pause_s * 1000):
            # Senders that the model has lost in a ring of garbage are answered by their end.
            gc.collect()
            pause_s = min(2 * pause_s, LONGEST_SWEEP_S)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)


class Sink:
    """Takes what is sent for one batch, as a channel does."""

    __slots__ = ("_number", "_take")

    def __init__(self, number: int, take: Callable[[int, Sequence[wire.Reply]], None]) -> None:
        self._number = number
        self._take = take

    def send(self, _kind: int, parts: Sequence[Any]) -> None:
        # The stream belongs to the process that the model has forked.
        if not is_forked():
            _, _, replies = wire.read_responses(b"".join(parts))
            self._take(self._number, replies)

    send_at_leisure = send
