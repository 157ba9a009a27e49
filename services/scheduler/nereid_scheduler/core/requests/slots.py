"""Slots of a model's instances; a slot is free or taken by a sequence.

As on Triton, the lowest free index is taken, so that sequences spread over the instances. A slot is
created when the slot before it is taken, as a configuration may ask for two billion.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid_scheduler.core.requests.sequence import Sequence


class Slot:
    """Place for one sequence at an instance."""

    __slots__ = ("index", "order", "row", "sequence")

    def __init__(self, row: SlotRow, index: int, order: int) -> None:
        self.row = row
        self.index = index
        self.order = order
        self.sequence: Sequence | None = None

    def __lt__(self, other: Slot) -> bool:
        return (self.index, self.order) < (other.index, other.order)


class SlotRow:
    """Slots of one instance. Until all `size` slots are created, the last one was never taken."""

    __slots__ = ("closed", "instance", "occupied", "order", "ready", "size", "slots")

    def __init__(self, instance: Hashable, size: int, order: int) -> None:
        self.instance = instance
        self.size = size
        self.order = order
        self.slots: list[Slot] = []
        # Slots whose sequence has a waiting request, in the order in which they became ready.
        self.ready: dict[Slot, None] = {}
        # A closed row takes no new sequences. Only then, `occupied` has the slots with a sequence.
        self.closed = False
        self.occupied: set[Slot] = set()

    def make_slot(self) -> Slot | None:
        """Create and return the next slot, which is free; `None` if all slots were created."""
        if len(self.slots) == self.size:
            return None
        slot = Slot(self, len(self.slots), self.order)
        self.slots.append(slot)
        return slot

    def sequences(self) -> list[Sequence]:
        """Return the sequences that have a slot in this row."""
        return [slot.sequence for slot in self.slots if slot.sequence is not None]


class SlotTable:
    """All slots of one model version."""

    def __init__(self, slots_per_instance: int) -> None:
        self._size = slots_per_instance
        self._rows: dict[Hashable, SlotRow] = {}
        self._free: list[Slot] = []
        self._orders = count()

    def add_row(self, instance: Hashable) -> SlotRow:
        """Add an instance, whose slots are all free."""
        row = self._rows[instance] = SlotRow(instance, self._size, next(self._orders))
        self._add_slot(row)
        return row

    def _add_slot(self, row: SlotRow) -> None:
        slot = row.make_slot()
        if slot is not None:
            heappush(self._free, slot)

    @property
    def capacity(self) -> int:
        """Number of slots of all instances. Without instances, the slots of one are counted."""
        return self._size * max(1, len(self._rows))

    def row_of(self, instance: Hashable) -> SlotRow | None:
        """Return the row of an instance; `None` if the instance is unknown."""
        return self._rows.get(instance)

    def close_row(self, row: SlotRow) -> None:
        """Close a row: no new sequence takes a slot of it, and its sequences keep their slots."""
        row.closed = True
        row.occupied = {slot for slot in row.slots if slot.sequence is not None}

    def remove_row(self, instance: Hashable) -> SlotRow | None:
        """Remove an instance's row and return it; `None` if the instance is unknown."""
        row = self._rows.pop(instance, None)
        if row is not None:
            row.closed = True
            if not self._rows:
                self._free.clear()
        return row

    def acquire_slot(self) -> Slot | None:
        """Take a free slot; return `None` if there is none."""
        while self._free:
            slot = heappop(self._free)
            row = slot.row
            if not row.closed:
                if slot is row.slots[-1]:
                    self._add_slot(row)
                return slot
        return None

    def release_slot(self, slot: Slot) -> None:
        """Free the slot of a sequence that is over."""
        slot.sequence = None
        slot.row.ready.pop(slot, None)
        if slot.row.closed:
            slot.row.occupied.discard(slot)
        else:
            heappush(self._free, slot)
