"""The slots of a model's instances, and which of them are free.

Free slots are taken as Triton takes them: the lowest index first, so that sequences spread over the
instances. A slot is made when the one before it is taken: a configuration may ask for two billion.
Pure; an instance is any hashable object.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid_scheduler.core.requests.sequence import Sequence


class Slot:
    """A place for one sequence at an instance."""

    __slots__ = ("index", "order", "row", "sequence")

    def __init__(self, row: SlotRow, index: int, order: int) -> None:
        self.row = row
        self.index = index
        self.order = order
        self.sequence: Sequence | None = None

    def __lt__(self, other: Slot) -> bool:
        return (self.index, self.order) < (other.index, other.order)


class SlotRow:
    """The slots of one instance; their indices are the rows of its batches.

    size: how many it may have. slots: those that were made, of which the last has not been taken
    yet unless there are no more.
    """

    __slots__ = ("closed", "instance", "occupied", "order", "ready", "size", "slots")

    def __init__(self, instance: Hashable, size: int, order: int) -> None:
        self.instance = instance
        self.size = size
        self.order = order
        self.slots: list[Slot] = []
        # Slots whose sequence has a request waiting, in the order in which they got one.
        self.ready: dict[Slot, None] = {}
        # Its slots take no new sequences. Those that still have one; only kept once it is closed.
        self.closed = False
        self.occupied: set[Slot] = set()

    def make_slot(self) -> Slot | None:
        """The next slot, which is free; None: it has all."""
        if len(self.slots) == self.size:
            return None
        slot = Slot(self, len(self.slots), self.order)
        self.slots.append(slot)
        return slot

    def sequences(self) -> list[Sequence]:
        return [slot.sequence for slot in self.slots if slot.sequence is not None]


class SlotTable:
    """All slots of one model version."""

    def __init__(self, slots_per_instance: int) -> None:
        self._size = slots_per_instance
        self._rows: dict[Hashable, SlotRow] = {}
        self._free: list[Slot] = []
        self._orders = count()

    def add_row(self, instance: Hashable) -> SlotRow:
        """Its slots are free from now on."""
        row = self._rows[instance] = SlotRow(instance, self._size, next(self._orders))
        self._add_slot(row)
        return row

    def _add_slot(self, row: SlotRow) -> None:
        slot = row.make_slot()
        if slot is not None:
            heappush(self._free, slot)

    @property
    def capacity(self) -> int:
        """How many slots all instances have; of one, if there is none yet."""
        return self._size * max(1, len(self._rows))

    def row_of(self, instance: Hashable) -> SlotRow | None:
        """An instance's slots; None: it has none."""
        return self._rows.get(instance)

    def close_row(self, row: SlotRow) -> None:
        """Its slots are taken no more; the sequences that it has keep theirs."""
        row.closed = True
        row.occupied = {slot for slot in row.slots if slot.sequence is not None}

    def remove_row(self, instance: Hashable) -> SlotRow | None:
        """Its slots are taken no more; None: it has none."""
        row = self._rows.pop(instance, None)
        if row is not None:
            row.closed = True
            if not self._rows:
                self._free.clear()
        return row

    def acquire_slot(self) -> Slot | None:
        """A free slot, no longer free; None: there is none."""
        while self._free:
            slot = heappop(self._free)
            row = slot.row
            if not row.closed:
                if slot is row.slots[-1]:
                    self._add_slot(row)
                return slot
        return None

    def release_slot(self, slot: Slot) -> None:
        """Its sequence is over, and no other may have it now."""
        slot.sequence = None
        slot.row.ready.pop(slot, None)
        if slot.row.closed:
            slot.row.occupied.discard(slot)
        else:
            heappush(self._free, slot)
