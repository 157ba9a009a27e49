"""What one instance has received: the life of its batches, from the first that is heard of them to
their last response.

The executor's side of the instance stream (docs/protocols.md), for all that serve one: batches of
arrays, of requests, and a worker process. Pure, and the only writer of a begun batch's state. The
scheduler's side is InstanceBatches.

    state      event                                         next
    -          asked back                                    WITHDRAWN: reported as given back
    -          read, while fewer than `depth` execute        begun at once, or after replays
    WITHDRAWN  read, or a later one is read                  forgotten: it is never begun
    -          begun                                         EXECUTING
    EXECUTING  asked back                                    EXECUTING: its response follows
    EXECUTING  responses of a decoupled model                EXECUTING
    EXECUTING  executed, and members wait for a response     DEFERRED: the next one may come
    EXECUTING  all have responded; if decoupled: executed    COMPLETE
    DEFERRED   responses, but not all                        DEFERRED
    DEFERRED   the last response                             COMPLETE
    COMPLETE   its last frame was sent                       forgotten, and counted
    any begun  the stream ends                               LOST: no frame of it is sent

A batch of arrays has one frame, which completes it: it is ended when that was sent.
While the instance executes, its next batches may lie in its socket, where nobody can remove them,
so that a withdrawn one is skipped when its turn comes. Exactly one side wins: a batch is executed
and responded to, or reported as given back and never executed.

States of sequences are asked for while no batch executes, and given when none is deferred either.
Everything else breaks the protocol, and the stream ends for it.
"""

# layout: not compiled, generic

from __future__ import annotations

import threading
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

from nereid.core.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence


class BatchState(Enum):
    """Of a begun batch: see the module's table."""

    EXECUTING = 1
    DEFERRED = 2
    COMPLETE = 3
    LOST = 4


# Members of an enumeration are slow to look up.
EXECUTING, DEFERRED, COMPLETE, LOST = BatchState


class ReceivedBatch:
    """A batch that its instance has begun; its runner extends it."""

    # The scheduler's number; 0: of a replay or a warm-up, which nobody sends.
    id: int
    # What the model knows it by.
    number: int
    state: BatchState = EXECUTING


_B = TypeVar("_B", bound=ReceivedBatch)


class ReceivedBatches(Generic[_B]):
    """One instance's, of one session with a scheduler. Used by the instance's thread, but for
    what says otherwise. Raises ProtocolError for what may not come now.
    """

    def __init__(self, depth: int = 1, *, decoupled: bool = False) -> None:
        """depth: how many batches may execute at once.

        decoupled: a batch may execute on when all of its members have responded.
        """
        self.depth = depth
        self._decoupled = decoupled
        self._lock = threading.Lock()
        # Messages up to this number were read.
        self.last_read = 0
        self._withdrawn: set[int] = set()
        # By the model's numbers, the oldest first. COMPLETE ones, until their frame is sent, are
        # where they were before.
        self.executing: dict[int, _B] = {}
        self.deferred: dict[int, _B] = {}
        # The number of the request for sequences' states that has no reply, and their slots.
        self.export: tuple[int, Sequence[int]] | None = None
        # How many batches were completed.
        self.completed = 0

    def begin_session(self) -> None:
        """The next scheduler numbers its messages from 1 again. What was begun stays."""
        with self._lock:
            self.last_read = self.completed = 0
            self._withdrawn.clear()

    # ---- from the scheduler

    def read(self, number: int) -> bool:
        """A batch has come; False: it was given back, and must not begin."""
        if self.executing and not self.may_begin:
            raise ProtocolError(f"batch {number} comes while {_names(self.executing)} executes")
        if self.export is not None:
            raise ProtocolError(f"batch {number} comes before the states that were asked for")
        with self._lock:
            if number <= self.last_read:
                raise ProtocolError(f"batch {number} comes after batch {self.last_read}")
            self.last_read = number
            if not self._withdrawn:
                return True
            withdrawn = number in self._withdrawn
            # Those before it were lost with an earlier stream.
            self._withdrawn = {each for each in self._withdrawn if each > number}
            return not withdrawn

    def withdraw(self, number: int) -> bool:
        """Prevent that a batch begins; False: it was read. From any thread."""
        with self._lock:
            if number <= self.last_read:
                return False
            self._withdrawn.add(number)
            return True

    def begin_export(self, number: int, slots: Sequence[int]) -> None:
        """States of sequences are asked for."""
        if self.executing:
            raise ProtocolError(f"states are asked for while {_names(self.executing)} executes")
        self.read(number)
        self.export = number, slots

    def controlled(self, batch_id: int) -> _B | None:
        """The batch that a control is for; None: it has ended."""
        if batch_id > self.last_read:
            raise ProtocolError(f"a control for batch {batch_id}, which has not come")
        return next((each for each in self.begun() if each.id == batch_id), None)

    # ---- from the model

    def begin(self, batch: _B) -> None:
        """A batch that was read, or that nobody has sent, executes from now on."""
        self.executing[batch.number] = batch

    def advance(self, batch: _B, *, executed: bool, waiting: bool) -> None:
        """A begun batch has had responses, or was executed.

        waiting: some of its members have no last response.
        """
        if batch.state is EXECUTING:
            if not executed and (waiting or self._decoupled):
                return
            if waiting:
                batch.state = DEFERRED
                # In this order: busy and begun() must not miss it.
                self.deferred[batch.number] = batch
                del self.executing[batch.number]
        if not waiting:
            batch.state = COMPLETE

    def end(self, batch: _B) -> None:
        """A batch was executed, all its members have responded, and that was sent if it could be:
        until now it kept the stream open.
        """
        try:
            del self.executing[batch.number]
        except KeyError:
            del self.deferred[batch.number]
        if batch.id:
            self.completed += 1

    def due_export(self) -> tuple[int, Sequence[int]] | None:
        """Once no response can change them: the states to give now, by their slots, and the number
        of the reply.
        """
        if self.executing or self.deferred:
            return None
        export, self.export = self.export, None
        return export

    # ---- its end

    def lose_all(self) -> list[_B]:
        """The stream has ended: the batches that had begun."""
        lost = self.begun()
        self.executing.clear()
        self.deferred.clear()
        self.export = None
        for batch in lost:
            batch.state = LOST
        return lost

    # ---- what there is

    @property
    def busy(self) -> bool:
        """Whether some request waits for a response. From any thread."""
        return bool(self.executing or self.deferred)

    @property
    def may_begin(self) -> bool:
        """Whether another batch may come while those execute that do."""
        return len(self.executing) < self.depth

    def oldest(self) -> _B | None:
        """Of those that execute, which end in the order in which they began."""
        return next(iter(self.executing.values()), None)

    def find(self, number: int) -> _B | None:
        """The batch that the model knows by this number; None: of an earlier stream."""
        return self.executing.get(number) or self.deferred.get(number)

    def begun(self) -> list[_B]:
        """Those with deferred responses, then those that execute. From any thread."""
        # In this order: one that is deferred meanwhile must not be missed.
        executing = [*self.executing.values()]
        return [*self.deferred.values(), *executing]


def _names(batches: dict[int, _B]) -> str:
    return ", ".join(f"batch {each.id}" for each in batches.values())
