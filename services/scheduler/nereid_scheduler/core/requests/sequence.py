"""One sequence, its requests' places in it, and what a request says of its sequence.

Knows no slot table, no batch and no clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.core import correlation_ids, sequence_owners

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.core.correlation_ids import CorrelationId
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.core.requests.recovery import Recovery, Restore, Transfer
    from nereid_scheduler.core.requests.slots import Slot


class SequenceFlags(NamedTuple):
    """Correlation id, START and END of a request; an id of 0 or "" means no sequence."""

    id: CorrelationId
    start: bool
    end: bool


_NONE = SequenceFlags(0, start=False, end=False)
# Bound on the difference of the numbers of a sequence's open requests at one gateway.
_MAX_OPEN: Final = 1 << 16


def sequence_flags(parameters: Mapping[str, Any] | None) -> SequenceFlags:
    """Return a request's correlation id, START and END. The gateway has checked the types.

    Raises:
        Unimplemented: the id is too long.
    """
    if not parameters:
        return _NONE
    get = parameters.get
    correlation_id = get("sequence_id", 0)
    if isinstance(correlation_id, str):
        # Requests of models do not come through a gateway, so the length is checked here.
        correlation_ids.check_length(correlation_id)
    else:
        correlation_id = correlation_ids.as_unsigned(correlation_id)
    # Arguments are positional: by keyword this takes twice as long.
    return SequenceFlags(correlation_id, bool(get("sequence_start")), bool(get("sequence_end")))


class Sequence:
    """The requests from a START to an END. With 100,000 alive, an idle one holds no queue.

    See `sequence_batcher` for its states.
    """

    __slots__ = (
        "__weakref__",
        "begun",
        "executed_id",
        "executing",
        "id",
        "key",
        "lost",
        "offered",
        "owner",
        "recovery",
        "seen_ns",
        "slot",
        "transfer",
        "visible_id",
        "waiting",
    )

    def __init__(self, correlation_id: CorrelationId, owner: str = "") -> None:
        """owner: the principal or address that it belongs to, as in InferRequest."""
        self.id = correlation_id
        # The id that models see: another one while another principal's sequence has this id there.
        self.visible_id = correlation_id
        self.owner = owner
        self.key = sequence_owners.sequence_key(correlation_id, owner)
        # `None` means that the sequence is in the backlog, moves, or is over.
        self.slot: Slot | None = None
        # Requests that cannot be in a batch yet, in order.
        self.waiting: deque[Entry] | None = None
        # The request that may be in the next batch; used only by the strategy "oldest".
        self.offered: Entry | None = None
        # Number of its requests that instances have.
        self.executing = 0
        # Some request has been executed, so its instance has state.
        self.begun = False
        # Number of the request that was executed last; 0 if there was none since its START came.
        self.executed_id = 0
        # Reason why its state is gone; empty if it is not.
        self.lost = ""
        # Time when its last request came, or ended.
        self.seen_ns = 0
        # `None` means that no other instance can go on with it.
        self.recovery: Recovery | None = None
        # `None` means that its state is where it should be, or lost.
        self.transfer: Transfer | None = None

    def has_executed(self, request_id: int) -> bool:
        """Return whether a request that is sent again has been executed.

        Requests of one gateway that are open at once have close numbers; those of other gateways
        are far away.
        """
        return 0 <= self.executed_id - request_id < _MAX_OPEN

    def append(self, entry: Entry) -> None:
        """Add a waiting request at the end."""
        entry.holder = self
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(entry)

    def prepend(self, entry: Entry) -> None:
        """Put a request ahead of the waiting ones."""
        entry.holder = self
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.appendleft(entry)

    def pop(self) -> Entry:
        """Remove and return its first waiting request; there must be one."""
        waiting = self.waiting
        assert waiting is not None, "a sequence without waiting requests"
        entry = waiting.popleft()
        entry.holder = None
        if not waiting:
            self.waiting = None
        return entry

    def discard(self, entry: Entry) -> None:
        """Remove a waiting request."""
        waiting = self.waiting
        assert waiting is not None, "a sequence without waiting requests"
        waiting.remove(entry)
        entry.holder = None
        if not waiting:
            self.waiting = None

    def split(self, behind: Entry | None = None) -> list[Entry]:
        """Remove and return what waits from the first START on, or the first one after `behind`."""
        waiting = self.waiting or ()
        for index, entry in enumerate(waiting):
            assert entry.member is not None, "an entry that is in no sequence"
            if behind is None and entry.member.begins_anew:
                return [self._pop_last() for _ in range(len(waiting) - index)][::-1]
            if entry is behind:
                behind = None
        return []

    def _pop_last(self) -> Entry:
        waiting = self.waiting
        assert waiting is not None, "a sequence without waiting requests"
        entry = waiting.pop()
        if not waiting:
            self.waiting = None
        return entry

    def clear(self) -> list[Entry]:
        """Remove and return all waiting requests."""
        waiting, self.waiting = self.waiting, None
        for entry in waiting or ():
            entry.holder = None
        return list(waiting or ())

    @property
    def idle(self) -> bool:
        """True if none of its requests waits or runs, and its state does not move."""
        return (
            self.waiting is None
            and self.offered is None
            and not self.executing
            and self.transfer is None
        )


class SequenceMember:
    """An entry's place in its sequence."""

    __slots__ = (
        "alone",
        "bound",
        "end",
        "iteration",
        "restarts",
        "restore",
        "returns_state",
        "sequence",
        "slot_number",
        "start",
    )

    def __init__(self, sequence: Sequence, *, start: bool, end: bool) -> None:
        self.sequence = sequence
        self.start = start
        self.end = end
        # Number, from 1, of the slot that it runs in; 0 means not offered yet. The sequence itself
        # leaves the slot when its END is offered.
        self.slot_number = 0
        # Only for iterative sequences: how often the request was rescheduled and how often it has
        # begun anew; whether it may not begin anew again, and whether its client knows of no
        # sequence.
        self.iteration = self.restarts = 0
        self.bound = self.alone = False
        # Data that its instance needs first, and whether it must report the state that it leaves.
        self.restore: Restore | None = None
        self.returns_state = False

    @property
    def begins_anew(self) -> bool:
        """True if it needs no state: it is a START and not a later iteration of its model."""
        return self.start and not self.iteration
