"""A batcher that a Control lets refuse requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.errors import NereidError
    from nereid_scheduler.batching.dynamic_batcher import DynamicBatcher
    from nereid_scheduler.batching.fifo_batcher import FifoBatcher
    from nereid_scheduler.batching.policies.queue_control import Control
    from nereid_scheduler.core.instances.router import Router
    from nereid_scheduler.core.requests.entry import Batch, Entry


class AdaptiveBatcher:
    """Batcher that wraps another batcher and refuses requests that its Control rejects."""

    def __init__(
        self,
        batcher: FifoBatcher | DynamicBatcher,
        control: Control,
        router: Router[Any] | None = None,
    ) -> None:
        self.control = control
        self._batcher = batcher
        self._router = router
        self._last_instances = 1
        self._shares = control.shares
        # Entries that were refused in place of others, until they are returned with errors.
        self._displaced: dict[Entry, None] = {}
        # These methods do not involve the control.
        self.form_batches = batcher.form_batches
        self.has_grown = batcher.has_grown
        self.closes_ns = batcher.closes_ns
        self.batch_ended = batcher.batch_ended

    @property
    def pending(self) -> int:
        """Number of entries in the wrapped batcher."""
        return self._batcher.pending

    @property
    def _instances(self) -> int:
        return (self._router.count if self._router is not None else 0) or self._last_instances

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; if the control refuses the entry, raise the control's error."""
        batcher, shares = self._batcher, self._shares
        # A model's own request serves an accepted one: a refusal would waste the work done for it.
        is_call, exceeds_target = entry.request.caller != 0, False
        if not is_call:
            ahead = batcher.pending_ahead(entry.level)
            if not self.control.admit(entry, batcher.pending, ahead, self._instances, now_ns):
                self._displace_by(entry)
                exceeds_target = True
        batcher.enqueue(entry, now_ns)
        if shares is not None:
            shares.add(entry, is_kept=is_call, exceeds_target=exceeds_target)

    def _displace_by(self, entry: Entry) -> None:
        """Refuse a new entry, or queued ones of a client that has more than its share."""
        displaced = self.control.displaced_by(entry, self._instances)
        if displaced is None:
            raise self.control.refusal(entry)
        for other in displaced:
            self._remove(other)
            self._displaced[other] = None

    def requeue(self, entries: Sequence[Entry]) -> None:
        """Put entries back to the front, in this order; the control refuses none of them."""
        self._batcher.requeue(entries)
        if self._shares is not None:
            for entry in entries:
                self._shares.add(entry, is_kept=True)

    def remove_entry(self, entry: Entry) -> bool:
        """Remove an entry that no instance has; return False if the batcher does not have it."""
        if entry in self._displaced:
            del self._displaced[entry]
            return True
        return self._remove(entry)

    def _remove(self, entry: Entry) -> bool:
        removed = self._batcher.remove_entry(entry)
        if removed and self._shares is not None:
            self._shares.remove(entry)
        return removed

    def expire_entries(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        """Remove entries that have expired or must be refused now; return them with errors."""
        batcher, control, shares = self._batcher, self.control, self._shares
        expired = batcher.expire_entries(now_ns)
        if shares is not None:
            for entry, _ in expired:
                shares.remove(entry)
        count = control.excess(batcher.pending, self._instances, now_ns)
        if count > 0:
            last = control.last_entries(count, self._instances)
            for entry in batcher.last_entries(count) if last is None else last:
                if not entry.request.caller:
                    self._remove(entry)
                    self._displaced[entry] = None
        for entry in self._displaced:
            expired.append((entry, control.refusal(entry)))
        self._displaced.clear()
        return expired

    def wake_at_ns(self, now_ns: int) -> int | None:
        """Return the latest time at which the owner must expire entries and ask for batches."""
        return now_ns if self._displaced else self._batcher.wake_at_ns(now_ns)

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:
        """Return a batch for an instance, and report the batch to the control."""
        batch = self._batcher.next_batch(now_ns, instances)
        if batch is not None:
            self._last_instances = instances = max(1, instances)
            self.control.on_dequeued(batch, self._batcher.pending, instances, now_ns)
        return batch
