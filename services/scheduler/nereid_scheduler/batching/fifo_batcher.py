"""Triton's default scheduler, for models without a batcher of their own."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from nereid_scheduler.batching.queues import Expiries, Fifo, deadline_passed, queue_full
from nereid_scheduler.core.requests.entry import QUEUED, Batch, executing_batch

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from nereid.core.errors import NereidError
    from nereid_scheduler.core.requests.entry import Entry


class FifoBatcher:
    """Triton's default scheduler: one request per execution, in order of arrival."""

    def __init__(self, model_name: str, max_pending: int = 0) -> None:
        self.pending = 0
        self._model_name = model_name
        self._max_pending = max_pending
        self._queue = Fifo()
        self._expiries = Expiries()

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raise Unavailable if the queue is full."""
        if self._max_pending and self.pending >= self._max_pending:
            raise queue_full(entry)
        entry.enqueued_ns = now_ns
        entry.state = QUEUED
        self._queue.append(entry)
        self.pending += 1
        self._expiries.push(entry, self.pending)

    def pending_ahead(self, level: int) -> int:  # noqa: ARG002 (there are no levels)
        """Return how many entries would be executed before a new entry."""
        return self.pending

    def last_entries(self, count: int) -> list[Entry]:
        """Return the last `count` entries of the queue (or fewer), the last first."""
        return list(islice(self._queue.newest(), max(0, count)))

    def requeue(self, entries: Sequence[Entry]) -> None:
        """Put entries back to the front, in this order; the limit does not apply."""
        self._queue.prepend(entries)
        self.pending += len(entries)
        for entry in entries:
            entry.state = QUEUED
            self._expiries.push(entry, self.pending)

    def remove_entry(self, entry: Entry) -> bool:
        """Remove an entry that no instance has; return False if the queue does not have it."""
        if entry.holder is not self._queue:
            return False
        self._queue.discard(entry)
        self.pending -= 1
        return True

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:  # noqa: ARG002 (no batch is formed)
        """Return a batch that has the oldest entry alone; `None` if nothing is queued."""
        entries = self._queue.pop(1)
        if not entries:
            return None
        self.pending -= 1
        return executing_batch(entries, entries[0].valid.batch_size, "single")

    def has_grown(self, now_ns: int, instances: int) -> bool:  # noqa: ARG002 (no batch is formed)
        """Return True, as a batch of one entry cannot grow."""
        return True

    def form_batches(self, now_ns: int, instances: int) -> None:
        """Do nothing, as every entry runs alone."""

    def expire_entries(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        """Remove the entries whose deadline has passed; return them with their errors."""
        expired: list[tuple[Entry, NereidError]] = []
        for entry in self._expiries.due(now_ns):
            self.remove_entry(entry)
            expired.append((entry, deadline_passed(self._model_name)))
        return expired

    def closes_ns(self, now_ns: int) -> int | None:  # noqa: ARG002 (nothing is delayed)
        """Return `None`, as no batch is delayed."""
        return None

    def wake_at_ns(self, now_ns: int) -> int | None:  # noqa: ARG002 (nothing is delayed)
        """Return a time not after the next deadline; `None` if no entry has a deadline."""
        return self._expiries.next_ns()

    def batch_ended(self, instance: Hashable, batch: Batch, taken_ns: int, now_ns: int) -> None:
        """Do nothing, as batches cannot be larger."""
