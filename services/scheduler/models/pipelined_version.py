"""The version of a model whose instances may have a second batch, which waits for the first's end.

Without it an instance idles for a round trip after each batch. A batch waits only where no instance
is free and the one that it is sent to is about to end (see Pace); else it stays in the queue, where
it can grow and any instance can take it. Until its instance begins it, its requests count as
queued. It is asked back from an instance that takes longer than expected, which gives back what it
has not begun: so a wrong guess costs a few milliseconds.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, cast

from nereid.core.errors import Internal
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.batching.batch_shares import BatchShares, can_share
from nereid.services.scheduler.batching.batcher import FifoBatcher
from nereid.services.scheduler.batching.dynamic_batcher import DynamicBatcher, forms_ahead
from nereid.services.scheduler.batching.queue_control import AdaptiveBatcher
from nereid.services.scheduler.models.model_version import ModelVersion
from nereid.services.scheduler.observability.request_traces import end_attempts
from nereid.services.scheduler.requests.entry import RequestState
from nereid.services.scheduler.timer import RearmableTimer

if TYPE_CHECKING:
    from nereid.core.errors import NereidError
    from nereid.core.messages import InferResponse
    from nereid.model_config import ModelConfig
    from nereid.services.scheduler.batching.batcher import WaitingBatcher
    from nereid.services.scheduler.executors.instance import Instance, Running
    from nereid.services.scheduler.models.model_version import VersionContext
    from nereid.services.scheduler.requests.entry import Batch

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns


def lets_batches_wait(config: ModelConfig) -> bool:
    """Whether batches of this model may wait at instances.

    Not those of sequences, whose next request may depend on the last response; of decoupled models,
    whose instances say themselves when they are free; of models that run requests at most once,
    since it is unknown whether a lost instance had begun what waited there; and where a queue has
    priorities, timeouts or a bound of its own, which only hold for what is in the queue.
    """
    return (
        config.sequences is None
        and not config.decoupled
        and not config.at_most_once
        and (config.batching is None or forms_ahead(config.batching))
    )


class PipelinedVersion(ModelVersion):
    """A ModelVersion that keeps its instances busy; see lets_batches_wait()."""

    def __init__(self, config: ModelConfig, number: int, context: VersionContext) -> None:
        super().__init__(config, number, context)
        assert isinstance(self._batcher, FifoBatcher | DynamicBatcher | AdaptiveBatcher), (
            "batches that cannot wait"
        )
        self._waiting_batcher = cast("WaitingBatcher", self._batcher)
        self._shares: BatchShares | None = None
        batching = config.batching
        if (
            isinstance(self._batcher, DynamicBatcher)
            and batching is not None
            and can_share(batching, config.max_batch_size)
        ):
            self._shares = BatchShares(self._batcher)
        optimization = config.proto.optimization
        # Such an instance copies a batch to its GPU while another one is computed.
        self._overlaps_on_gpus = optimization.eager_batching or optimization.cuda.output_copy_stream
        # Instances that execute and have no waiting batch, in the order in which they began.
        self._executing: dict[Instance, None] = {}
        # Instances that have one, in the order in which they were sent it.
        self._waiting: dict[Instance, None] = {}
        self._waiting_requests = 0
        # One timer for all waiting batches, which mostly have begun by then.
        self._withdrawal_timer = RearmableTimer(self._withdraw_overdue)

    @property
    def pending(self) -> int:
        return self._batcher.pending + self._waiting_requests

    def close(self) -> None:
        super().close()
        self._withdrawal_timer.cancel()

    # ---- instances

    def lose_instance(self, instance: Instance, cause: str, *, begun: bool = True) -> None:
        """It is lost. Both its batches are queued again, in order; only the running one has had an
        attempt to execute it.
        """
        waiting = self._remove_waiting(instance)
        if waiting is not None:
            self._requeue(waiting)
        super().lose_instance(instance, cause, begun=begun)
        if waiting is not None:
            if not self._router.count:
                self._await_instance()
            self.wake()

    def fail_begun(self, instance: Instance, begun: int, error: NereidError) -> None:
        waiting = instance.waiting
        if waiting is not None and waiting.id <= begun:
            self._remove_waiting(instance)
            now_ns = _now_ns()
            if waiting.batch.traced:
                end_attempts(instance, waiting, now_ns, error.message)
            self._fail_all(waiting.batch.entries, error, now_ns)
        super().fail_begun(instance, begun, error)

    def batch_withdrawn(self, instance: Instance, number: int) -> None:
        """It gives a batch back, which is queued again: it can go to another instance."""
        now_ns = _now_ns()
        waiting, running = instance.waiting, instance.running
        if waiting is not None and waiting.id == number and waiting.withdrawing:
            self._remove_waiting(instance)
            self._requeue(waiting)
            if instance in self._router:
                self._executing[instance] = None
        elif running is not None and running.id == number and running.withdrawing:
            # The response to the batch before it has come first.
            instance.running = None
            self._requeue(running)
            self._release_instance(instance, now_ns)
            if not instance.at_work:
                instance.on_idle()
        else:
            super().batch_withdrawn(instance, number)
        self.wake()

    def _remove_instance(self, instance: Instance, cause: str, *, lost: bool) -> None:
        self._executing.pop(instance, None)
        super()._remove_instance(instance, cause, lost=lost)

    def _release_instance(self, instance: Instance, now_ns: int) -> None:
        if instance.waiting is None:
            self._executing.pop(instance, None)
            super()._release_instance(instance, now_ns)
            return
        del self._waiting[instance]
        running = instance.begin_waiting(now_ns)
        assert running is not None, "a waiting batch"
        self._waiting_requests -= len(running.batch.entries)
        if instance in self._router:
            self._executing[instance] = None
        # Before the responses are sent: the instance has work, but not for long.
        self._dispatch(now_ns)
        if instance.accepts_controls:
            for member, entry in enumerate(running.batch.entries):
                if entry.state is RequestState.RESPONDED:
                    instance.send_control(running.id, member, pb.MemberControl.CANCEL)

    def _on_batch_executed(
        self,
        instance: Instance,
        running: Running,
        reply: pb.Executed,
        responses: list[InferResponse],
        finished_ns: int,
    ) -> None:
        executed_ns = reply.compute_input_ns + reply.compute_infer_ns + reply.compute_output_ns
        total_ns = None if running.waited_since_ns else finished_ns - running.started_ns
        instance.pace.record_batch(executed_ns, total_ns)
        if self._shares is not None:
            self._shares.execution_ns = instance.pace.execution_ns
        super()._on_batch_executed(instance, running, reply, responses, finished_ns)

    # ---- dispatch

    def _dispatch(self, now_ns: int) -> None:
        if self._shares is not None:
            self._shares.update(len(self._open), self._router.count)
        super()._dispatch(now_ns)
        if self._executing and self._batcher.pending and not self._router.free:
            self._send_waiting(now_ns)

    def _start(self, batch: Batch, now_ns: int) -> Instance:
        instance = super()._start(batch, now_ns)
        if instance.accepts_waiting and instance.running is not None:
            self._executing[instance] = None
        return instance

    def _send_waiting(self, now_ns: int) -> None:
        """Send batches that cannot grow any more to instances that are about to end theirs."""
        for instance in list(self._executing):
            running = instance.running
            assert running is not None, "an instance that executes"
            if running.withdrawing:
                continue
            overlaps = self._overlaps_on_gpus and instance.gpu_uuid
            if not overlaps and not instance.pace.may_send(now_ns - running.started_ns):
                continue
            count = self._router.count
            if overlaps:
                batch = self._batcher.next_batch(now_ns, count)
            else:
                batch = self._waiting_batcher.next_waiting_batch(now_ns, count)
            if batch is None:
                return
            self._start_waiting(instance, batch, now_ns)

    def _start_waiting(self, instance: Instance, batch: Batch, now_ns: int) -> None:
        self.statistics.batches_closed[batch.reason] += 1
        try:
            instance.execute_next(batch, now_ns)
        except Exception:
            _log.exception("a batch of %r cannot be sent", self)
            error = Internal("the batch cannot be sent to an executor", accepted=True)
            # Later: the caller of submit() must have its entry before the entry fails.
            self._loop.call_soon(self._fail_all, batch.entries, error, now_ns)
            return
        del self._executing[instance]
        self._waiting[instance] = None
        self._waiting_requests += len(batch.entries)
        self._watch_waiting(instance, now_ns)

    # ---- batches that wait for too long

    def _withdraw_overdue(self) -> None:
        now_ns = _now_ns()
        for instance in self._waiting:
            if now_ns >= _overdue_ns(instance):
                instance.withdraw_waiting()
            else:
                self._watch_waiting(instance, now_ns)

    def _watch_waiting(self, instance: Instance, now_ns: int) -> None:
        """Have the timer fire when its waiting batch is overdue, or before that."""
        at_ns = max(_overdue_ns(instance), now_ns)
        if at_ns < self._withdrawal_timer.at_ns:
            self._withdrawal_timer.arm(at_ns, now_ns)

    def _remove_waiting(self, instance: Instance) -> Running | None:
        """Take its waiting batch, which it will not execute, from an instance."""
        waiting, instance.waiting = instance.waiting, None
        if waiting is not None:
            del self._waiting[instance]
            self._waiting_requests -= len(waiting.batch.entries)
        return waiting

    def _requeue(self, running: Running) -> None:
        """Put a batch that no instance has begun back to the front of the queue."""
        entries = [
            entry for entry in running.batch.entries if entry.state is not RequestState.RESPONDED
        ]
        if running.batch.traced:
            for entry in entries:
                if entry.trace is not None:
                    entry.trace.undo_attempt()
        self._batcher.requeue(entries)


def _overdue_ns(instance: Instance) -> int:
    """When the batch that an instance executes takes longer than its patience allows."""
    assert instance.running is not None, "an instance that executes"
    return instance.running.started_ns + instance.pace.patience_ns
