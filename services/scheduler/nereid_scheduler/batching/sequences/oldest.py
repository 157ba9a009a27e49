"""Strategy "oldest": each sequence of an instance offers one request at a time.

A dynamic batcher for each instance forms batches of these requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.model_config import DynamicBatching
from nereid_scheduler.batching.dynamic_batcher import DynamicBatcher
from nereid_scheduler.batching.policies.gathering import Gathering, can_gather
from nereid_scheduler.batching.policies.sizing import Sizing
from nereid_scheduler.batching.sequences.sequence_batcher import SequenceBatcher, member_of

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid.model_config import ModelConfig, SequenceBatching
    from nereid_scheduler.batching.times.batch_times import BatchTimes
    from nereid_scheduler.core.instances.router import Router
    from nereid_scheduler.core.requests.entry import Batch, Entry
    from nereid_scheduler.core.requests.sequence import Sequence
    from nereid_scheduler.core.requests.slots import Slot, SlotRow


class OldestBatcher(SequenceBatcher):
    """SequenceBatcher with the strategy "oldest"."""

    def __init__(  # noqa: PLR0913, PLR0917 (one fact each)
        self,
        config: ModelConfig,
        batching: SequenceBatching,
        router: Router[Hashable],
        times: BatchTimes,
        max_pending: int = 0,
        client_share: float = 1.0,
    ) -> None:
        slots = max(1, batching.max_candidate_sequences)
        super().__init__(config, batching, router, times, slots, max_pending, client_share)
        self._batching = oldest = batching.oldest or DynamicBatching()
        delay_ns = oldest.max_queue_delay_us * 1000
        self._sizing = Sizing(config.max_batch_size, delay_ns, oldest.preferred_batch_sizes)
        self._gathers = can_gather(config)
        self._batchers: dict[SlotRow, DynamicBatcher] = {}
        # Key: an instance's row. Value: maps an offered entry to its sequence.
        self._offers: dict[SlotRow, dict[Entry, Sequence]] = {}

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:  # noqa: ARG002 (a Batcher)
        """Return a batch for the first free instance whose batcher has a batch ready, or `None`."""
        for row, offers in self._offers.items():
            if not self._router.is_free(row.instance):
                continue
            batch = self._batchers[row].next_batch(now_ns, 1)
            if batch is None:
                continue
            for entry in batch.entries:
                sequence = offers.pop(entry)
                sequence.offered = None
                self._begin(entry, sequence)
            if not offers:
                del self._offers[row]
            self.pending -= len(batch.entries)
            batch.instance = row.instance
            self._release_slots(batch)
            return batch
        return None

    def batch_ended(self, instance: Hashable, batch: Batch, taken_ns: int, now_ns: int) -> None:
        """Report an executed batch to the DynamicBatcher of the instance."""
        row = self.sequences.slots.row_of(instance)
        batcher = None if row is None else self._batchers.get(row)
        if batcher is not None:
            batcher.batch_ended(instance, batch, taken_ns, now_ns)

    def _append(self, sequence: Sequence, entry: Entry) -> None:
        slot = sequence.slot
        if slot is None or sequence.waiting or sequence.offered or sequence.executing:
            sequence.append(entry)
        else:
            self._offer_entry(sequence, slot, entry)

    def _offer(self, sequence: Sequence) -> None:
        slot = sequence.slot
        if slot is None or not sequence.waiting or sequence.offered or sequence.executing:
            return
        self._offer_entry(sequence, slot, sequence.pop())

    def _offer_entry(self, sequence: Sequence, slot: Slot, entry: Entry) -> None:
        row = slot.row
        batcher = self._batchers.get(row)
        if batcher is None:
            batcher = self._batchers[row] = DynamicBatcher(
                self._model_name,
                self._batching,
                self._sizing,
                Gathering(self._times) if self._gathers else None,
            )
        batcher.enqueue(entry, entry.enqueued_ns)
        sequence.offered = entry
        offers = self._offers.get(row)
        if offers is None:
            offers = self._offers[row] = {}
        offers[entry] = sequence
        member_of(entry).slot_number = slot.index + 1

    def _release_slots(self, batch: Batch) -> None:
        """Release the slots of the sequences that end with a batch.

        While an END waits, a START of the same slot could overtake it in a batch of another shape.
        """
        for entry in batch.entries:
            member = member_of(entry)
            slot = member.sequence.slot
            if member.end and slot is not None:
                self._next_in_slot(slot)

    def _withdraw(self, sequence: Sequence) -> Entry | None:
        entry, sequence.offered = sequence.offered, None
        if entry is None:
            return None
        for row, offers in self._offers.items():
            if offers.pop(entry, None) is not None:
                self._batchers[row].remove_entry(entry)
                if not offers:
                    del self._offers[row]
                break
        return entry

    def _remove_row(self, row: SlotRow) -> list[Sequence]:
        sequences = dict.fromkeys(row.sequences())
        self._batchers.pop(row, None)
        for entry, sequence in self._offers.pop(row, {}).items():
            sequence.offered = None
            sequence.prepend(entry)
            sequences[sequence] = None
        return list(sequences)

    def _has_offers(self, row: SlotRow) -> bool:
        return row in self._offers

    def closes_ns(self, now_ns: int) -> int | None:
        """Return the earliest time at which the delay of an instance's batch ends."""
        # wake_at_ns() adds the deadlines.
        times = (self._batchers[row].closes_ns(now_ns) for row in self._offers)
        return min((time for time in times if time is not None), default=None)
