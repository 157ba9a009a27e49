"""What one instance has been sent: the life of its batches, from dispatch to the last response.

The scheduler's side of the instance stream (docs/protocols.md). Pure, and the only writer of a sent
batch's state. Batches are found by their numbers, which grow; an instance executes them in that
order.

    state        event                                         next
    -            sent, and the instance has nothing            EXECUTING
    -            sent behind the batch that executes           WAITING
    WAITING      the batch before it ends                      EXECUTING
    WAITING      asked back                                    WITHDRAWING
    WITHDRAWING  the batch before it ends                      WITHDRAWING, first in line
    WITHDRAWING  given back                                    ENDED: it runs elsewhere
    WITHDRAWING  first in line, and a reply: it had begun      as EXECUTING
    EXECUTING    a reply of an instance that is still busy     EXECUTING
    EXECUTING    a reply, members without a last response      RESPONDING: the instance is free
    EXECUTING    a reply, no such members                      ENDED
    RESPONDING   the last response of its last member          ENDED
    any          the instance is lost                          ENDED

Everything else breaks the protocol, and the stream ends for it: the instance is lost, and what it
had runs again by the ordinary crash recovery.
"""

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
    """See the module's table."""

    WAITING = 1
    WITHDRAWING = 2
    EXECUTING = 3
    RESPONDING = 4
    ENDED = 5


# An attribute of an Enum class costs as much as a small call.
WAITING: Final = BatchState.WAITING
WITHDRAWING: Final = BatchState.WITHDRAWING
EXECUTING: Final = BatchState.EXECUTING
RESPONDING: Final = BatchState.RESPONDING
ENDED: Final = BatchState.ENDED


class Member:
    """A request of a sent batch, where its responses may come one by one. Its entry may end before
    it, if its client cancels.
    """

    __slots__ = ("ended_ns", "entry", "failed", "index", "rescheduled", "responded_ns", "responses")

    def __init__(self, entry: Entry, index: int, now_ns: int) -> None:
        self.entry = entry
        self.index = index
        self.responses = 0
        self.responded_ns = now_ns
        # 0: its last response has not come.
        self.ended_ns = 0
        self.failed = False
        # Its instance wants the request again.
        self.rescheduled = False


class SentBatch:
    """A batch that an instance was sent."""

    __slots__ = (
        "batch",
        "execution",
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
    ) -> None:
        self.id = number
        self.batch = batch
        self.state: BatchState = EXECUTING
        # When the instance was sent it; or began it, if it has waited.
        self.started_ns = started_ns
        # When it was sent, if it has waited; 0: the instance was free.
        self.waited_since_ns = 0
        # The instance's, and its name.
        self.revision = revision
        self.gpu_uuid = gpu_uuid
        self.instance = instance
        # Since when the instance had had no batch; as started_ns: it had one until then.
        self.idle_since_ns = started_ns
        # None: the instance is still executing it.
        self.execution: Execution | None = None
        # None: it has one reply, with a response to each of its entries.
        self.members: list[Member] | None = None
        self.open_members = 0

    def track_members(self, now_ns: int) -> list[Member]:
        """Expect its responses one by one."""
        self.members = [
            Member(entry, index, now_ns) for index, entry in enumerate(self.batch.entries)
        ]
        self.open_members = len(self.members)
        return self.members

    def open_entries(self) -> list[Entry]:
        """Those without their last response from the instance."""
        if self.members is None:
            return self.batch.entries
        return [member.entry for member in self.members if not member.ended_ns]

    def end_member(self, member: Member, now_ns: int) -> None:
        """It has had its last response."""
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
        """The member that a response is to. Raises ProtocolError if it waits for none."""
        members = self.members
        if members is None or index >= len(members) or members[index].ended_ns:
            raise ProtocolError(
                f"a response to member {index} of batch {self.id}, which waits for none"
            )
        return members[index]

    def end_execution(self, reply: Executed, finished_ns: int) -> Execution:
        """It was executed: the times that the instance reports, and the scheduler's own."""
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
            # The response before it may have been read long after the instance had sent it.
            began_ns = min(self.started_ns, finished_ns - execution.compute_ns)
            self.started_ns = execution.started_ns = max(self.waited_since_ns, began_ns)
        return execution


class InstanceBatches:
    """One instance's batches. first: the one that it executes, as far as is known here."""

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
        # Of the last message that expects a reply.
        self.last_id = 0
        self.first: SentBatch | None = None
        # When it had no batch any more, or was ready for its first.
        self.idle_since_ns = 0
        # Sent behind the first.
        self.waiting: SentBatch | None = None
        # Executed, with members without their last response; by number.
        self.responding: dict[int, SentBatch] = {}
        # The number of the request for sequences' states that has no reply; 0: there is none.
        self.exporting = 0
        # Those whose states it is for.
        self._exported_slots: frozenset[int] = frozenset()
        # Batches up to this number were lost with an earlier stream.
        self._lost_through = 0

    def add_batch(self, sent: SentBatch) -> None:
        """The instance is sent a batch; it may have one that executes, and none that waits."""
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
        """The instance is asked for the states of slots' sequences: the number of that message."""
        self.last_id += 1
        self.exporting = self.last_id
        self._exported_slots = frozenset(slots)
        return self.exporting

    def end_export(self, number: int, slots: Sequence[int]) -> bool:
        """The instance gives states of these slots away; False: its reply is to a batch.

        Raises ProtocolError: it was not asked for one of them, or gives one twice.
        """
        if number != self.exporting or not number:
            return False
        given = {*slots}
        if len(given) < len(slots) or not given <= self._exported_slots:
            asked = sorted(self._exported_slots)
            raise ProtocolError(f"states of slots {[*slots]}, while it was asked for {asked}")
        self.exporting = 0
        return True

    def withdraw_waiting(self) -> SentBatch | None:
        """The waiting batch, if it is to be asked back now."""
        waiting = self.waiting
        if waiting is None or waiting.state is not WAITING:
            return None
        waiting.state = WITHDRAWING
        return waiting

    def end_withdrawal(self, number: int) -> SentBatch | None:
        """The instance gives a batch back, which it never executes.

        None: the batch was lost with an earlier stream. Raises ProtocolError.
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
        """The batch that a reply is about. Raises ProtocolError if it can have none now."""
        first = self.first
        if first is not None and first.id == number:
            return first
        sent = self.responding.get(number)
        if sent is None:
            executing = "none" if first is None else f"batch {first.id}"
            raise ProtocolError(f"a response to batch {number} while executing {executing}")
        return sent

    def end_first(self, now_ns: int) -> None:
        """The first batch was executed: the one that waits is next."""
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
        """Forget a batch that was executed, if no member waits for a response."""
        if not sent.open_members and sent.state is RESPONDING:
            sent.state = ENDED
            del self.responding[sent.id]

    def lose_begun(self, begun: int) -> list[SentBatch]:
        """The instance is about to be lost: the batches up to this number, which are not run again;
        the oldest first.
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
        """The stream is lost: the batches that may have begun, the oldest first; and the one that
        has not, since it waited behind another.
        """
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
        """Whether it still has to respond to anything."""
        return self.first is not None or bool(self.responding)

    def entries(self) -> list[Entry]:
        """Those without their last response, but for a waiting batch's."""
        batches = [*self.responding.values()]
        if self.first is not None:
            batches.append(self.first)
        return [entry for sent in batches for entry in sent.open_entries()]

    def place_of(self, entry: Entry) -> tuple[int, int] | None:
        """The batch's number, and the member's in it, of an entry that it has begun."""
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
