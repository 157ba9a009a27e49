"""State machine of the batches that one instance was sent, from dispatch to the last response.

This is the scheduler's side of the instance stream (docs/protocols.md). An instance executes its
batches in the order of their numbers. It has a first batch, at most one that waits behind the
first, and any number that still owe responses.

    state        event                                         next state
    (new)        sent to an instance without a batch           EXECUTING
    (new)        sent behind the batch that executes           WAITING
    WAITING      the batch before it ends                      EXECUTING
    WAITING      the scheduler asks for it back                WITHDRAWING
    WITHDRAWING  the batch before it ends                      WITHDRAWING, now the first batch
    WITHDRAWING  the instance gives it back                    ENDED; it runs elsewhere
    WITHDRAWING  it is the first batch, and gets a reply:      as for EXECUTING
                 the instance had begun it
    EXECUTING    a reply, and the instance is still busy       EXECUTING
    EXECUTING    the reply that ends its execution, and some   RESPONDING; the instance is free
                 members lack their last response
    EXECUTING    the reply that ends its execution, and no     ENDED
                 member lacks a response
    RESPONDING   the last response of its last member          ENDED
    any          the instance is lost                          ENDED

Every other event breaks the protocol: the instance is lost, and its batches run again.
"""

# layout: not pure, uses time

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Final

from nereid.core.errors import ProtocolError
from nereid_scheduler.core.requests.execution import Execution

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.core.wire.executed import Executed
    from nereid_scheduler.core.requests.entry import Batch, Entry


class BatchState(Enum):
    """State of a sent batch; the module's table has the transitions."""

    WAITING = 1
    WITHDRAWING = 2
    EXECUTING = 3
    RESPONDING = 4
    ENDED = 5


# Reading an attribute of an Enum class costs as much as a small call.
WAITING: Final = BatchState.WAITING
WITHDRAWING: Final = BatchState.WITHDRAWING
EXECUTING: Final = BatchState.EXECUTING
RESPONDING: Final = BatchState.RESPONDING
ENDED: Final = BatchState.ENDED


class Member:
    """Request of a sent batch whose responses come one by one; its entry may end earlier."""

    __slots__ = ("ended_ns", "entry", "failed", "index", "rescheduled", "responded_ns", "responses")

    def __init__(self, entry: Entry, index: int, now_ns: int) -> None:
        self.entry = entry
        self.index = index
        self.responses = 0
        self.responded_ns = now_ns
        self.ended_ns = 0
        self.failed = False
        # True if the instance will execute the request again.
        self.rescheduled = False


class SentBatch:
    """Record of a batch that was sent to an instance."""

    __slots__ = (
        "batch",
        "error",
        "execution",
        "executor",
        "failed",
        "gpu_uuid",
        "id",
        "idle_since_ns",
        "instance",
        "members",
        "open_members",
        "revision",
        "started_ns",
        "state",
        "waited_since_ns",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - a record
        self,
        number: int,
        batch: Batch,
        started_ns: int,
        revision: bytes = b"",
        gpu_uuid: str = "",
        instance: str = "",
        executor: str = "",
    ) -> None:
        self.id = number
        self.batch = batch
        self.state: BatchState = EXECUTING
        # Time at which the batch was sent, or began after it waited at the instance.
        self.started_ns = started_ns
        # When the batch was sent, if it waited at the instance; otherwise 0.
        self.waited_since_ns = 0
        self.revision = revision
        self.gpu_uuid = gpu_uuid
        self.instance = instance
        self.executor = executor
        # Time from which the instance had no batch; `started_ns` if it was busy before.
        self.idle_since_ns = started_ns
        self.execution: Execution | None = None
        # Why the batch was lost, or an entry of it failed; may be empty.
        self.error = ""
        # Entries of a batch with one reply that have failed, except by an error of the model's own.
        self.failed: list[Entry] = []
        # `None` if the batch gets one reply, with a response to each of its entries.
        self.members: list[Member] | None = None
        self.open_members = 0

    def track_members(self, now_ns: int) -> list[Member]:
        """Create and return the members of a batch whose responses come one by one."""
        self.members = [
            Member(entry, index, now_ns) for index, entry in enumerate(self.batch.entries)
        ]
        self.open_members = len(self.members)
        return self.members

    def open_entries(self) -> list[Entry]:
        """Return the entries whose last response has not come from the instance."""
        if self.members is None:
            return self.batch.entries
        return [member.entry for member in self.members if not member.ended_ns]

    def end_member(self, member: Member, now_ns: int) -> None:
        """Record that a member has had its last response."""
        member.ended_ns = now_ns
        self.open_members -= 1

    def check_whole(self, responses: int) -> None:
        """Raise ProtocolError unless a reply has a response to each member."""
        if responses != len(self.batch.entries):
            raise ProtocolError(
                f"{responses} responses to the {len(self.batch.entries)} requests of batch"
                f" {self.id}"
            )

    def open_member(self, index: int) -> Member:
        """Return the member with this index; raise ProtocolError if it expects no response."""
        members = self.members
        if members is None or index >= len(members) or members[index].ended_ns:
            raise ProtocolError(
                f"a response to member {index} of batch {self.id}, which waits for none"
            )
        return members[index]

    def end_execution(self, reply: Executed, finished_ns: int) -> Execution:
        """Create the Execution from times that the instance and the scheduler measured."""
        self.execution = execution = Execution(
            self.started_ns,
            finished_ns,
            time.time_ns() // 1_000_000,
            reply.compute_input_ns,
            reply.compute_infer_ns,
            reply.compute_output_ns,
            self.revision,
            self.gpu_uuid,
            self.instance,
            self.batch.size,
            self.idle_since_ns,
        )
        if self.waited_since_ns:
            # The reply to the batch before may have been read long after it was sent.
            began_ns = min(self.started_ns, finished_ns - execution.compute_ns)
            self.started_ns = execution.started_ns = max(self.waited_since_ns, began_ns)
        return execution

    def lost_execution(self, now_ns: int) -> Execution:
        """Return an Execution without compute times, up to the loss of the batch's instance."""
        return Execution(
            self.started_ns,
            now_ns,
            0,
            0,
            0,
            0,
            b"",
            self.gpu_uuid,
            self.instance,
            self.batch.size,
            self.idle_since_ns,
        )


class InstanceBatches:
    """Batches of one instance. As far as the scheduler knows, the instance executes `first`."""

    __slots__ = (
        "_exported_slots",
        "_lost_through",
        "exporting",
        "first",
        "idle_since_ns",
        "last_id",
        "responding",
        "waiting",
    )

    def __init__(self) -> None:
        # Number of the last message that expects a reply.
        self.last_id = 0
        self.first: SentBatch | None = None
        # Time from which the instance had no batch, or from which it was ready.
        self.idle_since_ns = 0
        self.waiting: SentBatch | None = None
        # Executed batches by number that lack responses.
        self.responding: dict[int, SentBatch] = {}
        # Number of the pending request for states; 0 without one.
        self.exporting = 0
        self._exported_slots: frozenset[int] = frozenset()
        # Batches up to this number were lost with an earlier stream.
        self._lost_through = 0

    def add_batch(self, sent: SentBatch) -> None:
        """Add a sent batch, which becomes the first batch or waits behind an executing one."""
        self.last_id = sent.id
        if self.first is None:
            self.first = sent
            sent.idle_since_ns = self.idle_since_ns
            return
        assert self.waiting is None, "a second waiting batch"
        assert self.first.state is EXECUTING, "a batch behind one that may be given back"
        sent.state = WAITING
        sent.waited_since_ns = sent.started_ns
        self.waiting = sent

    def begin_export(self, slots: Iterable[int]) -> int:
        """Begin a request for the states in these slots; return the number for its message."""
        self.last_id += 1
        self.exporting = self.last_id
        self._exported_slots = frozenset(slots)
        return self.exporting

    def end_export(self, number: int, slots: Sequence[int]) -> bool:
        """End the pending request if this reply is for it; raise ProtocolError for wrong slots."""
        if number != self.exporting or not number:
            return False
        given = {*slots}
        if len(given) < len(slots) or not given <= self._exported_slots:
            asked = sorted(self._exported_slots)
            raise ProtocolError(f"states of slots {[*slots]}, while it was asked for {asked}")
        self.exporting = 0
        return True

    def withdraw_waiting(self) -> SentBatch | None:
        """Mark the waiting batch as WITHDRAWING and return it; `None` if none is WAITING."""
        waiting = self.waiting
        if waiting is None or waiting.state is not WAITING:
            return None
        waiting.state = WITHDRAWING
        return waiting

    def end_withdrawal(self, number: int) -> SentBatch | None:
        """Remove and return a batch that the instance gives back; `None` after a lost stream.

        Raises ProtocolError if the instance does not have the batch, or was not asked for it.
        """
        if number <= self._lost_through:
            return None
        if self.waiting is not None and self.waiting.id == number:
            sent, first = self.waiting, False
        elif self.first is not None and self.first.id == number:
            sent, first = self.first, True
        else:
            raise ProtocolError(f"it gives batch {number} back, which it does not have")
        if sent.state is not WITHDRAWING:
            raise ProtocolError(f"it gives batch {number} back, which was not asked back")
        if first:
            self.first = None
        else:
            self.waiting = None
        sent.state = ENDED
        return sent

    def replying(self, number: int) -> SentBatch:
        """Return the batch that a reply is for; raise ProtocolError if there is no such batch."""
        first = self.first
        if first is not None and first.id == number:
            return first
        sent = self.responding.get(number)
        if sent is None:
            executing = "none" if first is None else f"batch {first.id}"
            raise ProtocolError(f"a response to batch {number} while executing {executing}")
        return sent

    def end_first(self, now_ns: int) -> None:
        """End the execution of the first batch; the waiting batch becomes the first."""
        ended, waiting = self.first, self.waiting
        assert ended is not None, "no batch that could have been executed"
        self.first, self.waiting = waiting, None
        if waiting is not None:
            waiting.started_ns = now_ns
            if waiting.state is WAITING:
                waiting.state = EXECUTING
        self.idle_since_ns = now_ns
        if ended.open_members:
            ended.state = RESPONDING
            self.responding[ended.id] = ended
        else:
            ended.state = ENDED

    def end_responding(self, sent: SentBatch) -> None:
        """Forget an executed batch if no member waits for a response."""
        if not sent.open_members and sent.state is RESPONDING:
            sent.state = ENDED
            del self.responding[sent.id]

    def lose_begun(self, begun: int) -> list[SentBatch]:
        """Remove and return the batches that respond or have numbers up to `begun`.

        They must not run again. Call this before the instance is removed as lost.
        """
        lost = [*self.responding.values()]
        self.responding.clear()
        if self.first is not None and self.first.id <= begun:
            lost.append(self.first)
            self.first = None
            if self.waiting is not None and self.waiting.id <= begun:
                lost.append(self.waiting)
                self.waiting = None
        return _ended(lost)

    def lose_all(self) -> tuple[list[SentBatch], SentBatch | None]:
        """Remove all batches of a lost stream; return the begun ones and the waiting one."""
        lost = [*self.responding.values()]
        waiting, self.waiting = self.waiting, None
        if self.first is not None:
            lost.append(self.first)
        self.first = None
        self.responding.clear()
        self.exporting = 0
        self._lost_through = self.last_id
        if waiting is not None:
            waiting.state = ENDED
        return _ended(lost), waiting

    @property
    def at_work(self) -> bool:
        """True if the instance executes a batch, or still owes responses."""
        return self.first is not None or bool(self.responding)

    def entries(self) -> list[Entry]:
        """Return the entries without a last response, of batches that have begun."""
        batches = [*self.responding.values()]
        if self.first is not None:
            batches.append(self.first)
        return [entry for sent in batches for entry in sent.open_entries()]

    def place_of(self, entry: Entry) -> tuple[int, int] | None:
        """Return an entry's batch number and index, or `None` if no begun batch has the entry."""
        for sent in self.responding.values():
            if entry in sent.batch.entries:
                return sent.id, sent.batch.entries.index(entry)
        if self.first is not None and entry in self.first.batch.entries:
            return self.first.id, self.first.batch.entries.index(entry)
        return None


def _ended(batches: Iterable[SentBatch]) -> list[SentBatch]:
    lost = list(batches)
    for sent in lost:
        sent.state = ENDED
    return lost
