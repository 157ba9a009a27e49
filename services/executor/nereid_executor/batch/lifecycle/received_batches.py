"""The life of the batches that one instance receives, up to their last response.

This is the executor's side of the instance stream (docs/protocols.md). The module is used for
batches of arrays, for batches of requests, and in worker processes. It does no I/O. No other module
writes the state of a begun batch. The scheduler's side is InstanceBatches.

    state      event                                         next
    -          withdrawal requested                          WITHDRAWN: reported as given back
    -          read, while fewer than `depth` execute        begun at once, or after replays
    WITHDRAWN  read, or a later one is read                  forgotten: it is never begun
    -          begun                                         EXECUTING
    EXECUTING  withdrawal requested                          EXECUTING: its response follows
    EXECUTING  responses of a decoupled model                EXECUTING
    EXECUTING  executed, and members wait for a response     DEFERRED: the next one may come
    EXECUTING  all have responded; if decoupled: executed    COMPLETE
    DEFERRED   responses, but not all                        DEFERRED
    DEFERRED   the last response                             COMPLETE
    COMPLETE   its last frame was sent                       forgotten, and counted
    any begun  the stream ends                               LOST: no frame of it is sent

A batch of arrays has one frame, which completes the batch. The batch ends when the frame was sent.

While the instance executes, its next batches may wait in its socket, from which they cannot be
removed. A withdrawn batch is therefore skipped when its turn comes. Exactly one of two things
happens: a batch is executed and responded to, or it is reported as given back and never executed.

The scheduler may ask for states of sequences while no batch executes. It gets the states once no
batch is deferred either. Any other event breaks the protocol, which ends the stream.
"""

# layout: compiled

from __future__ import annotations

import threading
from enum import Enum
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from nereid.core.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence


class BatchState(Enum):
    """State of a begun batch, by the table in this module's docstring."""

    EXECUTING = 1
    DEFERRED = 2
    COMPLETE = 3
    LOST = 4


# Module-level names are faster to look up than members of an enumeration.
EXECUTING: Final = BatchState.EXECUTING
DEFERRED: Final = BatchState.DEFERRED
COMPLETE: Final = BatchState.COMPLETE
LOST: Final = BatchState.LOST


class ReceivedBatch:
    """A batch that its instance has begun. Times are readings of perf_counter_ns()."""

    def __init__(
        self, batch_id: int, number: int, ids: Sequence[int], started_ns: int, frame_bytes: int = 0
    ) -> None:
        # The scheduler's number; 0 for a replay or a warm-up, which no scheduler has sent.
        self.id = batch_id
        # Number by which the model knows the batch.
        self.number = number
        # Ids of the requests, which are the same in a resend.
        self.ids = ids
        # When the batch came, when the model got its inputs (0 if it did not get them), when the
        # model responded, and when the frame with the responses was made.
        self.started_ns = started_ns
        self.begun_ns = self.responded_ns = self.ended_ns = 0
        self.state: BatchState = EXECUTING
        # Size of the scheduler's frame.
        self.frame_bytes = frame_bytes
        # Trace contexts of the sampled requests.
        self.trace_contexts: Sequence[bytes] = ()
        # Why the batch failed as a whole; `None` if it did not.
        self.failure: str | None = None


_B = TypeVar("_B", bound=ReceivedBatch)


class ReceivedBatches(Generic[_B]):
    """The batches of one instance in one session with a scheduler.

    Only the instance's thread calls methods that are not marked thread-safe. A message that may not
    come now raises ProtocolError.
    """

    def __init__(self, depth: int = 1, *, decoupled: bool = False) -> None:
        """Let `depth` batches execute at the same time.

        decoupled: a batch may still execute after all of its members have responded.
        """
        self.depth = depth
        self._decoupled = decoupled
        self._lock = threading.Lock()
        self.last_read = 0
        self._withdrawn: set[int] = set()
        # Key: the model's number of a batch; the oldest is first. A COMPLETE batch keeps its place
        # until its frame is sent.
        self.executing: dict[int, _B] = {}
        self.deferred: dict[int, _B] = {}
        # Number and slots of a request for states that has no reply yet.
        self.export: tuple[int, Sequence[int]] | None = None
        self.completed = 0

    def begin_session(self) -> None:
        """Forget messages' numbers, since the next scheduler starts with 1; keep begun batches."""
        with self._lock:
            self.last_read = self.completed = 0
            self._withdrawn.clear()

    def read(self, number: int) -> bool:
        """Note that a batch was read; return False if it was withdrawn and must not begin."""
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
            # Withdrawn batches with smaller numbers were lost with an earlier stream.
            self._withdrawn = {later for later in self._withdrawn if later > number}
            return not withdrawn

    def withdraw(self, number: int) -> bool:
        """Prevent a batch from beginning; return False if it was read already. Thread-safe."""
        with self._lock:
            if number <= self.last_read:
                return False
            self._withdrawn.add(number)
            return True

    def begin_export(self, number: int, slots: Sequence[int]) -> None:
        """Note that the scheduler has asked for states of sequences."""
        if self.executing:
            raise ProtocolError(f"states are asked for while {_names(self.executing)} executes")
        self.read(number)
        self.export = number, slots

    def controlled(self, batch_id: int) -> _B | None:
        """Return the batch to which a control belongs, or `None` if the batch has ended."""
        if batch_id > self.last_read:
            raise ProtocolError(f"a control for batch {batch_id}, which has not come")
        return next((batch for batch in self.begun() if batch.id == batch_id), None)

    def begin(self, batch: _B) -> None:
        """Let a batch execute. It was read, or no scheduler has sent it."""
        self.executing[batch.number] = batch

    def advance(self, batch: _B, *, executed: bool, waiting: bool) -> None:
        """Change the state of a begun batch. waiting: some members have no last response."""
        if batch.state is EXECUTING:
            if not executed and (waiting or self._decoupled):
                return
            if waiting:
                batch.state = DEFERRED
                # The order matters: `busy` and `begun()` must find the batch in one of the two at
                # any time.
                self.deferred[batch.number] = batch
                del self.executing[batch.number]
        if not waiting:
            batch.state = COMPLETE

    def end(self, batch: _B) -> None:
        """Remove a COMPLETE batch after its last frame; until then it keeps the stream open."""
        try:
            del self.executing[batch.number]
        except KeyError:
            del self.deferred[batch.number]
        if batch.id:
            self.completed += 1

    def due_export(self) -> tuple[int, Sequence[int]] | None:
        """Return the number and the slots of a due reply with states; `None` if none is due.

        States are sent only when no response can change them any more.
        """
        if self.executing or self.deferred:
            return None
        export, self.export = self.export, None
        return export

    def lose_all(self) -> list[_B]:
        """Mark all begun batches as LOST after the end of the stream, and return them."""
        lost = self.begun()
        self.executing.clear()
        self.deferred.clear()
        self.export = None
        for batch in lost:
            batch.state = LOST
        return lost

    @property
    def busy(self) -> bool:
        """True if some request waits for a response. Any thread may read this."""
        return bool(self.executing or self.deferred)

    @property
    def may_begin(self) -> bool:
        """True if another batch may begin while others execute."""
        return len(self.executing) < self.depth

    def oldest(self) -> _B | None:
        """Return the oldest batch that executes. Batches end in the order in which they began."""
        return next(iter(self.executing.values()), None)

    def find(self, number: int) -> _B | None:
        """Return the batch with this number of the model; `None` if its stream has ended."""
        return self.executing.get(number) or self.deferred.get(number)

    def begun(self) -> list[_B]:
        """Return the batches with deferred responses, then the executing ones. Thread-safe."""
        # The order matters: a batch that becomes deferred between the reads must not be missed.
        executing = [*self.executing.values()]
        return [*self.deferred.values(), *executing]


def _names(batches: dict[int, _B]) -> str:
    return ", ".join(f"batch {batch.id}" for batch in batches.values())
