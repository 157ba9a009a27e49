"""A batcher that a Control lets refuse requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        # These methods do not involve the control.
        self.requeue = batcher.requeue
        self.remove_entry = batcher.remove_entry
        self.form_batches = batcher.form_batches
        self.has_grown = batcher.has_grown
        self.closes_ns = batcher.closes_ns
        self.wake_at_ns = batcher.wake_at_ns
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
        batcher = self._batcher
        pending = batcher.pending
        # A model's own request serves an accepted one: a refusal would waste the work done for it.
        if not entry.request.caller:
            ahead = batcher.pending_ahead(entry.level)
            if not self.control.admit(pending, ahead, self._instances, now_ns):
                raise self.control.refusal(entry)
        batcher.enqueue(entry, now_ns)

    def expire_entries(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        """Remove entries that have expired or must be refused now; return them with errors."""
        batcher, control = self._batcher, self.control
        expired = batcher.expire_entries(now_ns)
        excess = control.excess(batcher.pending, self._instances, now_ns)
        if excess > 0:
            for entry in batcher.last_entries(excess):
                if not entry.request.caller:
                    batcher.remove_entry(entry)
                    expired.append((entry, control.refusal(entry)))
        return expired

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:
        """Return a batch for an instance, and report the batch to the control."""
        batch = self._batcher.next_batch(now_ns, instances)
        if batch is not None:
            self._last_instances = instances = max(1, instances)
            self.control.on_dequeued(batch, self._batcher.pending, instances, now_ns)
        return batch
