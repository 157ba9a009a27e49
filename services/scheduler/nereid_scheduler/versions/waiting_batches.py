"""Second batches: an instance that executes may be sent one more batch, which waits there.

Without a second batch an instance is idle for a round trip after each batch. It is sent only if no
instance is free and the instance is about to end its batch (see InstanceTimes). Otherwise the batch
stays in the queue, where it can grow and any instance can take it. If the executing batch takes
longer than expected, the second one is withdrawn: the instance gives it back unless it has begun
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_scheduler.batching.policies.queue_policies import forms_ahead
from nereid_scheduler.core.instances.instance_batches import EXECUTING, WAITING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.model_config import ModelConfig
    from nereid_scheduler.batching.times.batch_times import BatchTimes
    from nereid_scheduler.core.instances.instance_batches import SentBatch
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.instances.router import Router


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
    """The instances of one version that may get, or have, a second batch."""

    def __init__(
        self, config: ModelConfig, router: Router[RemoteInstance], times: BatchTimes
    ) -> None:
        self._router = router
        self._times = times
        optimization = config.proto.optimization
        # With these, an instance copies a batch to its GPU while it computes another batch.
        self._overlaps_on_gpus = optimization.eager_batching or optimization.cuda.output_copy_stream
        # Instances that execute and have no second batch, in the order in which they began.
        self._executing: dict[RemoteInstance, None] = {}
        # Instances that have a second batch, in the order in which they were sent it.
        self._waiting: dict[RemoteInstance, None] = {}
        self.requests = 0

    def candidates(self, now_ns: int) -> Iterator[tuple[RemoteInstance, bool]]:
        """Yield the instances that may be sent a second batch now.

        The second value is True if the batch need not be complete.
        """
        if self._router.free:
            return
        for instance in list(self._executing):
            first = instance.batches.first
            assert first is not None, "an instance that executes"
            if first.state is not EXECUTING:
                continue
            overlaps = bool(self._overlaps_on_gpus and instance.gpu_uuid)
            times = self._times.of_instance(instance)
            if overlaps or times.may_send(now_ns - first.started_ns):
                yield instance, overlaps

    def overdue(self, now_ns: int) -> list[RemoteInstance]:
        """Return the instances whose second batch must be withdrawn."""
        return [instance for instance in self._waiting if now_ns >= self._overdue_ns(instance)]

    def wake_at_ns(self) -> int | None:
        """Return when the next second batch has to be withdrawn; `None` if no batch waits."""
        waiting = (
            instance
            for instance in self._waiting
            if instance.batches.waiting and instance.batches.waiting.state is WAITING
        )
        return min(map(self._overdue_ns, waiting), default=None)

    def on_sent(self, instance: RemoteInstance) -> None:
        """Record that an instance was sent a batch while it was free, and executes it."""
        if instance.accepts_waiting:
            self._executing[instance] = None

    def on_sent_second(self, instance: RemoteInstance, sent: SentBatch) -> None:
        """Record that an instance was sent a second batch."""
        del self._executing[instance]
        self._waiting[instance] = None
        self.requests += len(sent.batch.entries)

    def on_begun(self, instance: RemoteInstance) -> None:
        """Record that an instance has begun the batch that waited there."""
        first = instance.batches.first
        assert first is not None, "a batch that waited"
        self._remove(instance, first)

    def on_given_back(self, instance: RemoteInstance, sent: SentBatch) -> None:
        """Record that an instance gave its second batch back, or was lost with it."""
        if instance in self._waiting:
            self._remove(instance, sent)
        else:
            # The response to the batch before came first, so this batch counts as executing.
            self._executing.pop(instance, None)

    def remove_instance(self, instance: RemoteInstance) -> None:
        """Send an instance no second batch: it is free, or gets no more batches."""
        if instance in self._executing:
            del self._executing[instance]

    def _remove(self, instance: RemoteInstance, sent: SentBatch) -> None:
        del self._waiting[instance]
        self.requests -= len(sent.batch.entries)
        if instance in self._router:
            self._executing[instance] = None
        else:
            self._times.forget_instance(instance)

    def _overdue_ns(self, instance: RemoteInstance) -> int:
        """Return when the instance's executing batch will have taken longer than expected."""
        first = instance.batches.first
        assert first is not None, "an instance that executes"
        return first.started_ns + self._times.of_instance(instance).patience_ns


class NoWaitingBatches(WaitingBatches):
    """Used by versions whose instances have only one batch at a time."""

    def __init__(self) -> None:
        self.requests = 0

    def candidates(self, now_ns: int) -> Iterator[tuple[RemoteInstance, bool]]:  # noqa: ARG002 - of WaitingBatches
        """Yield nothing."""
        yield from ()

    def overdue(self, now_ns: int) -> list[RemoteInstance]:  # noqa: ARG002 - of WaitingBatches
        """Return nothing."""
        return []

    def wake_at_ns(self) -> int | None:
        """Return `None`, as no batch waits."""
        return None

    def on_sent(self, instance: RemoteInstance) -> None:
        """Record nothing."""

    def on_sent_second(self, instance: RemoteInstance, sent: SentBatch) -> None:
        """Record nothing, as no batch waits."""

    def on_begun(self, instance: RemoteInstance) -> None:
        """Record nothing, as no batch waits."""

    def on_given_back(self, instance: RemoteInstance, sent: SentBatch) -> None:
        """Record nothing, as no batch waits."""

    def remove_instance(self, instance: RemoteInstance) -> None:
        """Remove nothing."""


NO_WAITING_BATCHES: Final = NoWaitingBatches()
