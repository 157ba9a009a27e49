"""Strategy "direct": each slot of an instance has its own row in the instance's batches.

A slot without a request gets a null request if a later slot has a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_scheduler.batching.sequences.sequence_batcher import SequenceBatcher, member_of
from nereid_scheduler.core.requests.entry import executing_batch

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid.model_config import ModelConfig, SequenceBatching
    from nereid_scheduler.batching.times.batch_times import BatchTimes
    from nereid_scheduler.core.instances.router import Router
    from nereid_scheduler.core.requests.entry import Batch, Entry
    from nereid_scheduler.core.requests.sequence import Sequence
    from nereid_scheduler.core.requests.slots import Slot, SlotRow


class DirectBatcher(SequenceBatcher):
    """SequenceBatcher with the strategy "direct"."""

    def __init__(  # noqa: PLR0913, PLR0917 (one fact each)
        self,
        config: ModelConfig,
        batching: SequenceBatching,
        router: Router[Hashable],
        times: BatchTimes,
        max_pending: int = 0,
        client_share: float = 1.0,
    ) -> None:
        slots = max(1, config.max_batch_size)
        super().__init__(config, batching, router, times, slots, max_pending, client_share)
        # Number of ready slots with which a batch is closed before the queue delay is over.
        self._enough = batching.minimum_slot_utilization * slots
        self._delay_ns = batching.max_queue_delay_us * 1000 if self._enough else 0
        # Rows with ready slots, in the order in which they got one.
        self._rows: dict[SlotRow, None] = {}

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:  # noqa: ARG002 (a Batcher)
        """Return a batch for the first free instance whose ready slots are due, or `None`."""
        for row in self._rows:
            if self._router.is_free(row.instance) and self._is_due(row, now_ns):
                return self._cut(row, now_ns)
        return None

    def _offer(self, sequence: Sequence) -> None:
        slot = sequence.slot
        if slot is not None and sequence.waiting:
            slot.row.ready[slot] = None
            self._rows[slot.row] = None

    def _withdraw(self, sequence: Sequence) -> Entry | None:
        slot = sequence.slot
        if slot is not None:
            self._set_unready(slot)
        return None

    def _set_unready(self, slot: Slot) -> None:
        row = slot.row
        row.ready.pop(slot, None)
        if not row.ready:
            self._rows.pop(row, None)

    def _remove_row(self, row: SlotRow) -> list[Sequence]:
        self._rows.pop(row, None)
        row.ready.clear()
        return row.sequences()

    def _has_offers(self, row: SlotRow) -> bool:
        return bool(row.ready)

    def closes_ns(self, now_ns: int) -> int | None:
        """Return when the next queue delay of an instance ends; `None` if no batch is delayed."""
        if not self._delay_ns:
            return None
        times = [self._oldest_ns(row) + self._delay_ns for row in self._rows]
        # After its delay, a batch waits only for a free instance.
        return min((time for time in times if time > now_ns), default=None)

    def _is_due(self, row: SlotRow, now_ns: int) -> bool:
        if not self._delay_ns or len(row.ready) >= self._enough:
            return True
        return now_ns - self._oldest_ns(row) >= self._delay_ns

    def _oldest_ns(self, row: SlotRow) -> int:
        return min(_first(slot).enqueued_ns for slot in row.ready)

    def _cut(self, row: SlotRow, now_ns: int) -> Batch:
        key = _first(next(iter(row.ready))).key
        chosen = [slot for slot in row.ready if _first(slot).key == key]
        by_index = {slot.index: self._take(slot) for slot in chosen}
        like = by_index[chosen[0].index]
        entries = [
            by_index.get(index) or self._controls.null_entry(like, now_ns)
            for index in range(max(by_index) + 1)
        ]
        for slot in chosen:
            self._go_on(slot, by_index[slot.index])
        self.pending -= len(chosen)
        reason = "full" if len(chosen) == row.size else "immediate"
        batch = executing_batch(list(by_index.values()), len(chosen), reason)
        batch.entries, batch.instance = entries, row.instance
        batch.nulls = len(entries) - len(chosen)
        return batch

    def _take(self, slot: Slot) -> Entry:
        sequence = slot.sequence
        assert sequence is not None, "a ready slot without a sequence"
        self._set_unready(slot)
        entry = sequence.pop()
        member_of(entry).slot_number = slot.index + 1
        self._begin(entry, sequence)
        return entry

    def _go_on(self, slot: Slot, taken: Entry) -> None:
        """Offer the slot's next request after `taken`; if `taken` is an END, free the slot."""
        if member_of(taken).end:
            self._next_in_slot(slot)
        elif slot.sequence is not None:
            self._offer(slot.sequence)


def _first(slot: Slot) -> Entry:
    assert slot.sequence is not None, "a ready slot without a sequence"
    assert slot.sequence.waiting, "a ready slot without a request"
    return slot.sequence.waiting[0]
