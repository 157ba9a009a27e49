"""A sequence, the place of a request in its sequence, and the sequence parameters of a request."""

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
# Open requests of a sequence at one gateway have numbers that differ by less than this.
_MAX_OPEN: Final = 1 << 16


def sequence_flags(parameters: Mapping[str, Any] | None) -> SequenceFlags:
    """Return a request's id, START and END; raise Unimplemented if the id is too long."""
    if not parameters:
        return _NONE
    get = parameters.get
    correlation_id = get("sequence_id", 0)
    if isinstance(correlation_id, str):
        # Requests that models make do not come through a gateway, so check the length here.
        correlation_ids.check_length(correlation_id)
    else:
        correlation_id = correlation_ids.as_unsigned(correlation_id)
    # Keyword arguments take twice as long.
    return SequenceFlags(correlation_id, bool(get("sequence_start")), bool(get("sequence_end")))


class Sequence:
    """Requests of a model from a START to an END; `sequence_batcher` documents its states."""

    __slots__ = (
        "__weakref__",
        "begun",
        "copied",
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
        """owner: principal or address that the sequence belongs to, as in InferRequest."""
        self.id = correlation_id
        # Id that models see; it is another one if another principal has `id`.
        self.visible_id = correlation_id
        self.owner = owner
        self.key = sequence_owners.sequence_key(correlation_id, owner)
        # `copied_sequence` of its requests, which are copies; 0 for others.
        self.copied = 0
        # `None` means that the sequence is in the backlog, is moving, or is over.
        self.slot: Slot | None = None
        # `None` if empty, as there may be 100,000 idle sequences.
        self.waiting: deque[Entry] | None = None
        # Request that is offered to the next batch; only with the strategy "oldest".
        self.offered: Entry | None = None
        self.executing = 0
        # True if a request was executed, so that an instance has a state of the sequence.
        self.begun = False
        # Number of the last executed request; 0 if there was none since the last START.
        self.executed_id = 0
        # Why the state is lost; empty if it is not.
        self.lost = ""
        # Time at which the last request came or ended.
        self.seen_ns = 0
        # `None` means that the sequence cannot continue at another instance.
        self.recovery: Recovery | None = None
        # `None` if the state is not on its way to another instance.
        self.transfer: Transfer | None = None

    def has_executed(self, request_id: int) -> bool:
        """Return whether a resent request was executed; other gateways' numbers are far away."""
        return 0 <= self.executed_id - request_id < _MAX_OPEN

    def append(self, entry: Entry) -> None:
        """Add a waiting request at the end."""
        entry.holder = self
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(entry)

    def prepend(self, entry: Entry) -> None:
        """Put a request ahead of all waiting requests."""
        entry.holder = self
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.appendleft(entry)

    def pop(self) -> Entry:
        """Remove and return the first waiting request; there must be one."""
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
        """Remove and return the waiting requests from the first START (after `behind`) on."""
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
        """True if no request of the sequence waits or executes, and its state does not move."""
        return (
            self.waiting is None
            and self.offered is None
            and not self.executing
            and self.transfer is None
        )


class SequenceMember:
    """Place of an entry in its sequence."""

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
        # Slot number from 1; 0 until the entry is offered. It stays when an END leaves the slot.
        self.slot_number = 0
        # Only for iterative sequences: how often the request was rescheduled and has begun anew.
        # `bound`: it must not begin anew again. `alone`: the client has given no correlation id.
        self.iteration = self.restarts = 0
        self.bound = self.alone = False
        # To restore before the request, and whether to return the state after it.
        self.restore: Restore | None = None
        self.returns_state = False

    @property
    def begins_anew(self) -> bool:
        """True if the entry needs no earlier state: it is a START and was not rescheduled."""
        return self.start and not self.iteration
