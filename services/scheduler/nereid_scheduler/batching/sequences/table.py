"""Table of a model version's sequences and their slots, by Triton's rules."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from nereid.core.errors import InvalidArgument, Unavailable
from nereid.core.retry_after import DEFAULT_MS
from nereid.core.sequence_owners import (
    id_shown_to_model,
    is_limited,
    is_of_copies,
    is_principal,
    sequence_key,
)
from nereid.core.wire.messages import NO_CAPACITY_FOR_COPY
from nereid_scheduler.batching.sequences.backlog import Backlog
from nereid_scheduler.core.requests.sequence import Sequence
from nereid_scheduler.core.requests.slots import SlotTable

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid.core.correlation_ids import CorrelationId
    from nereid_scheduler.core.requests.sequence import SequenceFlags
    from nereid_scheduler.core.requests.slots import Slot, SlotRow

_log = logging.getLogger(__name__)

_CONFLICT: Final = (
    "sequence %s for model '%s' has a conflict. The previous sequence did not end before this"
    " sequence start. Previous sequence will be terminated early."
)


class SequenceTable:
    """Sequences of one model version. A key is a correlation id, and the owner if there is one."""

    def __init__(
        self, model_name: str, slots_per_instance: int, idle_ns: int, client_share: float = 1.0
    ) -> None:
        """client_share: maximum fraction of the slots for one owner; 1 means no limit."""
        self.slots = SlotTable(slots_per_instance)
        self._model_name = model_name
        self._idle_ns = idle_ns
        # Sequences that accept requests, in the order of their last request or its end.
        self._open: OrderedDict[Hashable, Sequence] = OrderedDict()
        # Key: the id that models see. Only sequences of principals, and of copies, are here.
        self._visible: WeakValueDictionary[CorrelationId, Sequence] = WeakValueDictionary()
        # Open sequences of copies, which make way for others.
        self._copies: dict[Hashable, Sequence] = {}
        self._client_share = client_share
        # Number of open sequences; empty without a limit.
        self._by_owner: Counter[str] = Counter()
        self._backlog = Backlog()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._open

    def find(self, key: Hashable) -> Sequence | None:
        """Return the sequence that accepts requests with a key."""
        return self._open.get(key)

    def copy_in_slot(self) -> Sequence | None:
        """Return a sequence of copies that has a slot."""
        copies = self._copies.values()
        return next((sequence for sequence in copies if sequence.slot is not None), None)

    def all_open(self) -> list[Sequence]:
        """Return the sequences that accept requests."""
        return list(self._open.values())

    @property
    def backlog(self) -> int:
        """Number of sequences that wait for a slot."""
        return len(self._backlog)

    def in_backlog(self, sequence: Sequence) -> bool:
        """Return whether a sequence waits for a slot."""
        return sequence in self._backlog

    def admit(
        self, flags: SequenceFlags, now_ns: int, owner: str = "", copied: int = 0
    ) -> Sequence:
        """Return a request's sequence; raise InvalidArgument or Unavailable if it is refused.

        copied: `copied_sequence` of a copy. Copies of a later sequence with the same id follow in
        the same slot; copies of an earlier one are refused then.
        """
        if not flags.id:
            raise InvalidArgument(
                f"inference request to model '{self._model_name}' must specify a non-zero or"
                " non-empty correlation ID"
            )
        key = sequence_key(flags.id, owner) if owner else flags.id
        sequence = self._open.get(key)
        if sequence is not None and sequence.lost:
            self._close(sequence)
            if not flags.start:
                raise sequence_lost(sequence, self._model_name)
            sequence = None
        if sequence is None:
            if not flags.start:
                raise InvalidArgument(
                    f"inference request for sequence {flags.id} to model '{self._model_name}' must"
                    " specify the START flag on the first request of the sequence"
                )
            sequence = self._add(flags.id, owner)
        elif sequence.copied != copied:
            if not flags.start:
                raise Unavailable(NO_CAPACITY_FOR_COPY.message, accepted=True)
            self._open.move_to_end(key)
        elif flags.start:
            _log.warning(_CONFLICT, flags.id, self._model_name)
            self._open.move_to_end(key)
        else:
            self._open.move_to_end(key)
        sequence.copied = copied
        sequence.seen_ns = now_ns
        if flags.end:
            self._close(sequence)
        return sequence

    def _add(self, correlation_id: CorrelationId, owner: str) -> Sequence:
        """Add a sequence, with a slot or in the backlog; raise Unavailable if it is refused."""
        self._check_share(owner)
        sequence = Sequence(correlation_id, owner)
        if is_principal(owner) or self._visible:
            self._choose_visible_id(sequence)
        self._open[sequence.key] = sequence
        if is_of_copies(owner):
            self._copies[sequence.key] = sequence
        if self._client_share < 1:
            self._by_owner[owner] += 1
        self._place(sequence)
        return sequence

    def successor_of(self, sequence: Sequence) -> Sequence:
        """Return a new sequence with the ids of an old sequence, to pass to replace()."""
        successor = Sequence(sequence.id, sequence.owner)
        successor.visible_id, successor.copied = sequence.visible_id, sequence.copied
        if is_principal(sequence.owner):
            self._visible[sequence.visible_id] = successor
        return successor

    def _choose_visible_id(self, sequence: Sequence) -> None:
        """Choose the id that models see. They may keep data by id, so each owner gets its own."""
        # Without a principal, the id is the key.
        other = self._visible.get(sequence.id, self._open.get(sequence.id))
        if other is not None and other.owner != sequence.owner:
            sequence.visible_id = id_shown_to_model(sequence.id, sequence.owner)
        if is_principal(sequence.owner):
            self._visible[sequence.visible_id] = sequence

    def _check_share(self, owner: str) -> None:
        if self._client_share >= 1 or not is_limited(owner):
            return
        limit = max(1, int(self._client_share * self.slots.capacity))
        if self._by_owner[owner] >= limit:
            raise Unavailable(
                f"{limit} sequences of this client are open for model '{self._model_name}', as many"
                " as one client may have: end some, or try again later",
                retry_after_ms=DEFAULT_MS,
            )

    def _close(self, sequence: Sequence) -> None:
        if self._open.get(sequence.key) is not sequence:
            return
        del self._open[sequence.key]
        self._copies.pop(sequence.key, None)
        if self._client_share < 1:
            self._by_owner[sequence.owner] -= 1
            if not self._by_owner[sequence.owner]:
                del self._by_owner[sequence.owner]

    def keep_open(self, sequence: Sequence, now_ns: int) -> None:
        """Restart a sequence's idle time, since one of its requests has ended."""
        if self._open.get(sequence.key) is sequence:
            sequence.seen_ns = now_ns
            self._open.move_to_end(sequence.key)

    def next_in_slot(self, slot: Slot) -> None:
        """Give a slot to the next sequence in the backlog, or release the slot."""
        if slot.sequence is not None:
            slot.sequence.slot = None
            slot.sequence = None
        if self._backlog and not slot.row.closed:
            self._bind(self._backlog.pop(), slot)
        else:
            self.slots.release_slot(slot)

    def drop(self, sequence: Sequence) -> Slot | None:
        """Forget a sequence. Return its former slot, which another sequence may have already."""
        self._close(sequence)
        self._backlog.discard(sequence)
        slot = sequence.slot
        if slot is not None:
            self.next_in_slot(slot)
        return slot

    def replace(self, sequence: Sequence, successor: Sequence) -> None:
        """Give a sequence's id and slot to its successor; a closed slot is not passed on."""
        if self._open.get(sequence.key) is sequence:
            self._open[sequence.key] = successor
            if sequence.key in self._copies:
                self._copies[sequence.key] = successor
            successor.seen_ns = sequence.seen_ns
        slot = sequence.slot
        if slot is not None and not slot.row.closed:
            sequence.slot = None
            self._bind(successor, slot)
        else:
            self.drop(sequence)
            self.return_to_backlog(successor)

    def return_to_backlog(self, sequence: Sequence) -> None:
        """Give a sequence a free slot. Without one it waits, and is first if it has requests."""
        sequence.slot = None
        slot = self.slots.acquire_slot()
        if slot is not None:
            self._bind(sequence, slot)
        elif sequence.waiting is None:
            self._backlog.append(sequence)
        else:
            self._backlog.prepend(sequence)

    def add_instance(self, instance: Hashable) -> SlotRow:
        """Add an instance, whose slots take sequences from the backlog."""
        row = self.slots.add_row(instance)
        while self._backlog:
            slot = self.slots.acquire_slot()
            if slot is None:
                break
            self._bind(self._backlog.pop(), slot)
        return row

    def expired(self, now_ns: int) -> list[Sequence]:
        """Close and return the sequences that have been idle for too long."""
        idle: list[Sequence] = []
        while self._open:
            sequence = next(iter(self._open.values()))
            if sequence.seen_ns + self._idle_ns > now_ns:
                break
            if sequence.idle:
                idle.append(sequence)
                self._close(sequence)
            else:
                sequence.seen_ns = now_ns
                self._open.move_to_end(sequence.key)
        return idle

    def next_expiry_ns(self) -> int | None:
        """Return a time not after the next sequence's expiry; `None` without sequences."""
        for sequence in self._open.values():
            return sequence.seen_ns + self._idle_ns
        return None

    def _place(self, sequence: Sequence) -> None:
        slot = None if self._backlog else self.slots.acquire_slot()
        if slot is None:
            self._backlog.append(sequence)
        else:
            self._bind(sequence, slot)

    def _bind(self, sequence: Sequence, slot: Slot) -> None:
        slot.sequence = sequence
        sequence.slot = slot


def sequence_lost(sequence: Sequence, model_name: str, cause: str = "") -> Unavailable:
    """Return the error of a lost sequence. cause: used if `sequence.lost` is empty."""
    return Unavailable(
        f"the state of sequence {sequence.id} of model '{model_name}' is lost:"
        f" {sequence.lost or cause};"
        " begin it again with a request that has the START flag",
        accepted=True,
    )
