"""What a worker that serves its own stream answers to a batch, part by part.

Response senders may answer after execute() has returned, from any thread; the thread that serves
the stream writes what they send. Knows no stream but as something to wait for.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from services.executor.answers import put
from services.executor.python_site.nereid_worker import wire
from services.executor.python_site.nereid_worker.serving import FIRST_SWEEP_S, LONGEST_SWEEP_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nereid.classification import Classification
    from nereid.pb import nereid_pb2 as pb
    from nereid.rpc import BlockingStream
    from services.executor.assembly import Piece
    from services.executor.python_site.nereid_worker.tasks import Execution


class UnderWay:
    """A batch, until all of its members are answered; by place, None: not yet."""

    __slots__ = ("answers", "classes", "execution", "open")

    def __init__(self, execution: Execution, answers: list[Sequence[Piece] | None]) -> None:
        self.execution = execution
        self.answers = answers
        self.open = len(answers)
        # Which outputs a member wants as classes.
        self.classes: dict[int, Mapping[str, Classification]] = {}

    def take(self) -> list[tuple[int, Sequence[Piece]]]:
        """The answers that were not taken before, with their places."""
        taken = [(place, told) for place, told in enumerate(self.answers) if told]
        for place, _ in taken:
            self.answers[place] = ()
        self.open -= len(taken)
        return taken


def partial(executed: pb.Executed, answers: Iterable[tuple[int, Sequence[Piece]]]) -> bytes:
    """A message that answers some of a batch's members."""
    executed.partial = True
    for place, told in answers:
        put(executed, place, told)
    return executed.SerializeToString()


class Sent:
    """What responses' senders send, from any thread, until the thread that serves takes it."""

    def __init__(self) -> None:
        self._sent: deque[tuple[int, Sequence[wire.Reply]]] = deque()
        # The collector may have a lost sender answer in the midst of a ring.
        self._lock = threading.RLock()
        # Readable when there is something, or something else to see.
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def of(self, number: int) -> _Sink:
        return _Sink(number, self)

    def put(self, number: int, replies: Sequence[wire.Reply]) -> None:
        self._sent.append((number, replies))
        self.ring()

    def take(self) -> list[tuple[int, Sequence[wire.Reply]]]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        taken = []
        while self._sent:
            taken.append(self._sent.popleft())
        return taken

    def ring(self) -> None:
        with self._lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        with self._lock:
            bell, self._bell = self._bell, -1
        os.close(bell)

    def wait(self, stream: BlockingStream) -> None:
        """Until there is something to take, here or from the stream."""
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


class _Sink:
    """Takes what is sent for one batch, as a channel does."""

    __slots__ = ("_number", "_sent")

    def __init__(self, number: int, sent: Sent) -> None:
        self._number = number
        self._sent = sent

    def send(self, _kind: int, parts: Sequence[Any]) -> None:
        _, _, replies = wire.read_answers(b"".join(parts))
        self._sent.put(self._number, replies)

    send_at_leisure = send
