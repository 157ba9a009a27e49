"""Which sequence each request belongs to, and which sequence has which slot: Triton's rules."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument, Unavailable
from nereid.services.scheduler.batching.sequences.sequence import Sequence
from nereid.services.scheduler.batching.sequences.slots import SlotTable

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid.core.correlation_ids import CorrelationId
    from nereid.services.scheduler.batching.sequences.sequence import SequenceFlags
    from nereid.services.scheduler.batching.sequences.slots import Slot, SlotRow

_log = logging.getLogger(__name__)

_CONFLICT: Final = (
    "sequence %s for model '%s' has a conflict. The previous sequence did not end before this"
    " sequence start. Previous sequence will be terminated early."
)


class SequenceTable:
    """The sequences of one model version, by correlation id."""

    def __init__(self, model_name: str, slots_per_instance: int, idle_ns: int) -> None:
        """idle_ns: so long after its last request or response a sequence is over."""
        self.slots = SlotTable(slots_per_instance)
        self._model_name = model_name
        self._idle_ns = idle_ns
        # Those that accept requests, the one whose last request came or ended first at the front.
        self._open: OrderedDict[CorrelationId, Sequence] = OrderedDict()
        # Those that wait for a slot, in order; some have had their END already.
        self._backlog: OrderedDict[Sequence, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, correlation_id: CorrelationId) -> bool:
        return correlation_id in self._open

    @property
    def backlog(self) -> int:
        """How many sequences wait for a slot."""
        return len(self._backlog)

    def in_backlog(self, sequence: Sequence) -> bool:
        """Whether it waits for a slot."""
        return sequence in self._backlog

    def admit(self, flags: SequenceFlags, now_ns: int) -> Sequence:
        """The sequence that a request belongs to; a new one has a slot, or is in the backlog.

        Raises:
            InvalidArgument: it is in no sequence, or its sequence has not been started.
            Unavailable: the sequence's state is lost; it must be started again.
        """
        if not flags.id:
            raise InvalidArgument(
                f"inference request to model '{self._model_name}' must specify a non-zero or"
                " non-empty correlation ID"
            )
        sequence = self._open.get(flags.id)
        if sequence is not None and sequence.lost:
            del self._open[flags.id]
            if not flags.start:
                raise sequence_lost(sequence, self._model_name)
            sequence = None
        if sequence is None:
            if not flags.start:
                raise InvalidArgument(
                    f"inference request for sequence {flags.id} to model '{self._model_name}' must"
                    " specify the START flag on the first request of the sequence"
                )
            sequence = self._open[flags.id] = Sequence(flags.id)
            self._place(sequence)
        elif flags.start:
            _log.warning(_CONFLICT, flags.id, self._model_name)
            self._open.move_to_end(flags.id)
        else:
            self._open.move_to_end(flags.id)
        sequence.seen_ns = now_ns
        if flags.end:
            self._open.pop(flags.id, None)
        return sequence

    def keep_open(self, sequence: Sequence, now_ns: int) -> None:
        """A request of it has ended: its idle time begins anew."""
        if self._open.get(sequence.id) is sequence:
            sequence.seen_ns = now_ns
            self._open.move_to_end(sequence.id)

    def next_in_slot(self, slot: Slot) -> None:
        """The slot's sequence is over: the first of the backlog takes its place, if any waits and
        the slot takes new ones.
        """
        if slot.sequence is not None:
            slot.sequence.slot = None
            slot.sequence = None
        if self._backlog and not slot.row.closed:
            self._bind(self._backlog.popitem(last=False)[0], slot)
        else:
            self.slots.release_slot(slot)

    def drop(self, sequence: Sequence) -> Slot | None:
        """Forget a sequence. Returns the slot that it had, which another may have now."""
        if self._open.get(sequence.id) is sequence:
            del self._open[sequence.id]
        self._backlog.pop(sequence, None)
        slot = sequence.slot
        if slot is not None:
            self.next_in_slot(slot)
        return slot

    def replace(self, sequence: Sequence, successor: Sequence) -> None:
        """The id and the slot are the successor's, but not a slot that takes no new sequences."""
        if self._open.get(sequence.id) is sequence:
            self._open[sequence.id] = successor
            successor.seen_ns = sequence.seen_ns
        slot = sequence.slot
        if slot is not None and not slot.row.closed:
            sequence.slot = None
            self._bind(successor, slot)
        else:
            self.drop(sequence)
            self.return_to_backlog(successor)

    def return_to_backlog(self, sequence: Sequence) -> None:
        """To its front if a request of it waits. It may take a free slot at once."""
        sequence.slot = None
        slot = self.slots.acquire_slot()
        if slot is not None:
            self._bind(sequence, slot)
        else:
            self._backlog[sequence] = None
            self._backlog.move_to_end(sequence, last=sequence.waiting is None)

    def add_instance(self, instance: Hashable) -> SlotRow:
        """Its slots take sequences from the backlog."""
        row = self.slots.add_row(instance)
        while self._backlog:
            slot = self.slots.acquire_slot()
            if slot is None:
                break
            self._bind(self._backlog.popitem(last=False)[0], slot)
        return row

    def expired(self, now_ns: int) -> list[Sequence]:
        """Sequences that have been idle for too long; looks at no others."""
        found: list[Sequence] = []
        while self._open:
            correlation_id, sequence = next(iter(self._open.items()))
            if sequence.seen_ns + self._idle_ns > now_ns:
                break
            if sequence.idle:
                found.append(sequence)
                del self._open[correlation_id]
            else:
                # As long as it waits or runs it is not idle.
                sequence.seen_ns = now_ns
                self._open.move_to_end(correlation_id)
        return found

    def next_expiry_ns(self) -> int | None:
        """No later than the next expiry."""
        for sequence in self._open.values():
            return sequence.seen_ns + self._idle_ns
        return None

    def _place(self, sequence: Sequence) -> None:
        slot = None if self._backlog else self.slots.acquire_slot()
        if slot is None:
            self._backlog[sequence] = None
        else:
            self._bind(sequence, slot)

    def _bind(self, sequence: Sequence, slot: Slot) -> None:
        slot.sequence = sequence
        sequence.slot = slot


def sequence_lost(sequence: Sequence, model_name: str, cause: str = "") -> Unavailable:
    """cause: where the sequence itself is not known to be lost."""
    return Unavailable(
        f"the state of sequence {sequence.id} of model '{model_name}' is lost:"
        f" {sequence.lost or cause};"
        " begin it again with a request that has the START flag",
        accepted=True,
    )
