"""Waiting batches: an instance that executes may be sent one more batch, which waits there.

Otherwise an instance is idle for a round trip after each batch. A batch waits only if no instance
is free and the chosen one is about to end its batch (see Pace). If that takes longer than expected,
the waiting batch is withdrawn, unless it has begun.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, cast

from nereid_scheduler.batching.batch_shares import BatchShares
from nereid_scheduler.batching.batch_sizes import BatchSizes
from nereid_scheduler.batching.batcher import FifoBatcher
from nereid_scheduler.batching.dynamic_batcher import DynamicBatcher
from nereid_scheduler.batching.forming_rules import can_share, forms_ahead
from nereid_scheduler.batching.queue_control import AdaptiveBatcher
from nereid_scheduler.core.instances.instance_batches import EXECUTING
from nereid_scheduler.core.timer import RearmableTimer

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.model_config import ModelConfig
    from nereid_scheduler.batching.batcher import Batcher, WaitingBatcher
    from nereid_scheduler.core.instances.instance_batches import SentBatch
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.instances.router import Router
    from nereid_scheduler.core.requests.entry import Batch
    from nereid_scheduler.core.requests.execution import Execution

    # Sends a batch; returns `None` if it cannot be sent.
    SendBatch = Callable[[RemoteInstance, Batch, int], SentBatch | None]

_now_ns = time.monotonic_ns


def lets_batches_wait(config: ModelConfig) -> bool:
    """Return whether batches of this model may wait at instances.

    Not with sequences, whose next request may depend on the last response; nor with decoupled
    models, which report when they are free; nor at most once, as a lost instance may have begun the
    batch; nor with priorities, timeouts or a limit, which apply to queued requests.
    """
    return (
        config.sequences is None
        and not config.decoupled
        and not config.at_most_once
        and (config.batching is None or forms_ahead(config.batching))
    )


class WaitingBatches:
    """Waiting batches of one version whose configuration allows them (lets_batches_wait())."""

    def __init__(
        self, config: ModelConfig, batcher: Batcher, router: Router[RemoteInstance], send: SendBatch
    ) -> None:
        assert isinstance(batcher, FifoBatcher | DynamicBatcher | AdaptiveBatcher), (
            "batches that cannot wait"
        )
        self._batcher = cast("WaitingBatcher", batcher)
        self._router = router
        self._send = send
        self._shares: BatchShares | None = None
        self._sizes: BatchSizes | None = None
        batching = config.batching
        if (
            isinstance(batcher, DynamicBatcher)
            and batching is not None
            and can_share(batching, config.max_batch_size)
        ):
            self._shares = BatchShares(batcher)
            self._sizes = BatchSizes()
            batcher.bounds = self._sizes.bounds
        optimization = config.proto.optimization
        # With these, an instance copies a batch to its GPU while it computes another batch.
        self._overlaps_on_gpus = optimization.eager_batching or optimization.cuda.output_copy_stream
        # Instances that execute and have no waiting batch, in the order in which they began.
        self._executing: dict[RemoteInstance, None] = {}
        # In the order in which the batches were sent.
        self._waiting: dict[RemoteInstance, None] = {}
        self.requests = 0
        # One timer for all waiting batches. Most of them have begun by the time it fires.
        self._timer = RearmableTimer(self._withdraw_overdue)

    def close(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def share_queue(self, open_requests: int) -> None:
        """Set the number of open requests. Call this before batches are formed."""
        if self._shares is not None:
            self._shares.update(open_requests, self._router.count)

    def send_batches(self, now_ns: int) -> None:
        """Send a second batch, if it cannot grow, to instances that will soon end their first."""
        if not self._executing or not self._batcher.pending or self._router.free:
            return
        for instance in list(self._executing):
            first = instance.batches.first
            assert first is not None, "an instance that executes"
            if first.state is not EXECUTING:
                continue
            overlaps = self._overlaps_on_gpus and instance.gpu_uuid
            if not overlaps and not instance.pace.may_send(now_ns - first.started_ns):
                continue
            count = self._router.count
            if overlaps:
                batch = self._batcher.next_batch(now_ns, count)
            else:
                batch = self._batcher.next_waiting_batch(now_ns, count)
            if batch is None:
                return
            if self._send(instance, batch, now_ns) is not None:
                del self._executing[instance]
                self._waiting[instance] = None
                self.requests += len(batch.entries)
                self._watch(instance, now_ns)

    def on_sent(self, instance: RemoteInstance) -> None:
        """Record that an instance was sent a batch while it was free, and executes it."""
        if instance.accepts_waiting:
            self._executing[instance] = None

    def on_executed(self, instance: RemoteInstance, sent: SentBatch, execution: Execution) -> None:
        """Record that an instance has executed a batch."""
        total_ns = None if sent.waited_since_ns else execution.finished_ns - sent.started_ns
        instance.pace.record_batch(execution.compute_ns, total_ns)
        if self._shares is not None:
            self._shares.execution_ns = instance.pace.execution_ns
        if self._sizes is not None and not instance.gpu_uuid:
            first, requests = sent.batch.entries[0], len(sent.batch.entries)
            # Costs are comparable only if no entry must run alone and each request has one row.
            if first.key is first.valid.shape_key and sent.batch.size == requests:
                taken_ns = execution.compute_ns + int(instance.pace.round_trip_ns)
                self._sizes.record(first.key, requests, taken_ns)

    def on_begun(self, instance: RemoteInstance) -> None:
        """Record that an instance has begun the batch that waited there."""
        first = instance.batches.first
        assert first is not None, "a batch that waited"
        self._remove(instance, first)

    def on_given_back(self, instance: RemoteInstance, sent: SentBatch) -> None:
        """Record that an instance gave its waiting batch back, or was lost with it."""
        if instance in self._waiting:
            self._remove(instance, sent)
        else:
            # The response to the batch before came first, so this batch counts as executing.
            self._executing.pop(instance, None)

    def remove_instance(self, instance: RemoteInstance) -> None:
        """Send an instance no waiting batch: it is free, or gets no more batches."""
        if instance in self._executing:
            del self._executing[instance]

    def _remove(self, instance: RemoteInstance, sent: SentBatch) -> None:
        del self._waiting[instance]
        self.requests -= len(sent.batch.entries)
        if instance in self._router:
            self._executing[instance] = None

    def _withdraw_overdue(self) -> None:
        now_ns = _now_ns()
        for instance in self._waiting:
            if now_ns >= _overdue_ns(instance):
                instance.withdraw_waiting()
            else:
                self._watch(instance, now_ns)

    def _watch(self, instance: RemoteInstance, now_ns: int) -> None:
        at_ns = max(_overdue_ns(instance), now_ns)
        if at_ns < self._timer.at_ns:
            self._timer.arm(at_ns, now_ns)


class NoWaitingBatches(WaitingBatches):
    """Used by versions whose instances have only one batch at a time."""

    def __init__(self) -> None:
        self.requests = 0

    def close(self) -> None:
        """Cancel nothing."""

    def share_queue(self, open_requests: int) -> None:
        """Set nothing."""

    def send_batches(self, now_ns: int) -> None:
        """Send nothing."""

    def on_sent(self, instance: RemoteInstance) -> None:
        """Record nothing."""

    def on_executed(self, instance: RemoteInstance, sent: SentBatch, execution: Execution) -> None:
        """Record nothing."""

    def on_begun(self, instance: RemoteInstance) -> None:
        """Record nothing, as no batch waits."""

    def on_given_back(self, instance: RemoteInstance, sent: SentBatch) -> None:
        """Record nothing, as no batch waits."""

    def remove_instance(self, instance: RemoteInstance) -> None:
        """Remove nothing."""


NO_WAITING_BATCHES: Final = NoWaitingBatches()


def _overdue_ns(instance: RemoteInstance) -> int:
    first = instance.batches.first
    assert first is not None, "an instance that executes"
    return first.started_ns + instance.pace.patience_ns
