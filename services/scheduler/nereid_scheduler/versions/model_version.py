"""Model version that executes requests on instances.

Only this module changes the version's queue and the batches of its instances. The batcher decides
which requests run together, and the router on which instance. This module must not know how an
executor loads a model, nor what a repository is.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from nereid.core.errors import Internal, NereidError, Unavailable
from nereid.pb import nereid_pb2 as pb
from nereid.timeline.records import DELAY, LOADING, RATE_LIMITER, Wait
from nereid_scheduler.batching.batcher import DynamicBatcher, make_batcher, target_of
from nereid_scheduler.batching.gathering import MIN_NS
from nereid_scheduler.batching.rate_limiting.rate_limited_batcher import (
    RateLimitedBatcher,
    RateLimitedRouter,
)
from nereid_scheduler.batching.sequences.iterative import IterativeBatcher
from nereid_scheduler.batching.sequences.oldest import OldestBatcher
from nereid_scheduler.batching.sequences.sequence_batcher import SequenceBatcher
from nereid_scheduler.core.instances.remote_instance import cancel_member
from nereid_scheduler.core.instances.router import Router
from nereid_scheduler.core.requests.entry import EXECUTING, QUEUED, RESPONDED, Entry, about
from nereid_scheduler.versions.member_responses import MemberResponses
from nereid_scheduler.versions.queued_requests import QueuedRequests
from nereid_scheduler.versions.reruns.resent_requests import may_have_run
from nereid_scheduler.versions.single_responses import SingleResponses
from nereid_scheduler.versions.state_transfers import NO_TRANSFERS, StateTransfers
from nereid_scheduler.versions.tracing.request_traces import end_attempts
from nereid_scheduler.versions.waiting_batches import (
    NO_WAITING_BATCHES,
    WaitingBatches,
    lets_batches_wait,
)
from nereid_scheduler.versions.waits.executor_wait import ExecutorWait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.core.wire.executed import Executed
    from nereid.model_config import ModelConfig
    from nereid_scheduler.batching.batcher import LatencyTarget
    from nereid_scheduler.core.instances.instance_batches import SentBatch
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.requests.entry import Batch
    from nereid_scheduler.core.requests.execution import Execution
    from nereid_scheduler.versions.version_context import VersionContext

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns
# After a larger batch, a single request waits until the end of the event loop's turn, as other
# requests may come and share its batch.
_FEW: Final = 2


class ModelVersion(QueuedRequests):
    """The requests of one model version, and the instances that execute them."""

    def __init__(self, config: ModelConfig, number: int, context: VersionContext) -> None:
        limits, limiter = context.limits, context.rate_limiter
        limited = None if limiter is None else RateLimitedRouter(limiter)
        self._router: Router[RemoteInstance] = limited or Router()
        batcher = make_batcher(
            config,
            self._router,
            max_pending=limits.max_queue_size,
            admission=limits.admission_of(config),
            client_share=limits.client_sequence_share,
        )
        self.target = target_of(batcher)
        self._sequences = batcher if isinstance(batcher, SequenceBatcher) else None
        # Set if the batcher may keep an instance idle until its last batch's clients send again.
        self._on_batch_end: Callable[[RemoteInstance, Batch, int, int], None] | None = None
        if limiter is None and isinstance(batcher, DynamicBatcher | OldestBatcher):
            self._on_batch_end = batcher.batch_ended
        super().__init__(
            config,
            number,
            context,
            batcher if limited is None else RateLimitedBatcher(batcher, limited, self.wake),
        )
        # Instances that get no new sequences, and stay until their sequences are over.
        self._retiring: set[RemoteInstance] = set()
        iterations = batcher if isinstance(batcher, IterativeBatcher) else None
        # States move only with single responses: each of several may change the state later.
        self._transfers: StateTransfers = NO_TRANSFERS
        self._responses: SingleResponses | MemberResponses
        if config.decoupled or iterations is not None:
            self._responses = MemberResponses(self, iterations)
            self._on_end.append(self._responses.end_entry)
        else:
            if self._sequences is not None and config.proto.sequence_batching.state:
                self._transfers = StateTransfers(
                    f"{self!r}", self._sequences.moves, self.wake, context.snapshots
                )
            self._responses = SingleResponses(self, self._transfers)
        if self._sequences is not None:
            self._on_end.append(self._end_in_sequence)
        self._waiting: WaitingBatches = NO_WAITING_BATCHES
        # With a rate limiter, an instance may execute only when it holds its resources.
        if limits.waiting_batches > 0 and limiter is None and lets_batches_wait(config):
            self._waiting = WaitingBatches(config, batcher, self._router, self._send_batch)
        # Empty if requests wait only for busy instances or slots of sequences.
        self._wait_reason = ""
        self._wait_from_ns = 0
        # If True, a request that comes alone is probably the only one.
        self._last_batch_small = True
        self._executor_wait = ExecutorWait(
            limits.no_executor_timeout_s, self._open, self._fail_waiting
        )

    @property
    def pending(self) -> int:
        """Number of requests that wait in the queue or at an instance."""
        return self._batcher.pending + self._waiting.requests

    @property
    def instances(self) -> tuple[int, int]:
        """Number of ready instances, and how many of these are free."""
        return self._router.count, self._router.free

    @property
    def sequences(self) -> tuple[int, int] | None:
        """Number of live sequences, and how many wait for a slot; `None` without sequences."""
        if self._sequences is None:
            return None
        return len(self._sequences.sequences), self._sequences.sequences.backlog

    def _start_alone(self, entry: Entry, now_ns: int) -> bool:
        if (
            not self._last_batch_small
            or not self._router.free_instances
            or self._batcher.pending
            or self._turn_due
            or self.cache is not None
            or self._order is not None
        ):
            return False
        batch = self._batcher.lone_batch(entry, now_ns)
        if batch is None:
            return False
        self._open[entry] = None
        self._start(batch, now_ns)
        return True

    def _on_queued(self, now_ns: int, *, at_once: bool) -> None:
        if at_once and self._last_batch_small and self._router.free:
            self._dispatch(now_ns)
        else:
            self.wake()
        if not self._router.count:
            self._await_instance()

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """Pause or resume the responses to an entry at its instance."""
        self._responses.set_flow(entry, paused=paused)

    def _cancel_execution(self, entry: Entry) -> None:
        # MemberResponses notifies the instance when the entry ends.
        if isinstance(self._responses, SingleResponses):
            cancel_member(entry, self._router)

    def _end_in_sequence(self, entry: Entry) -> None:
        assert self._sequences is not None
        self._sequences.end_entry(entry, _now_ns())
        self.wake()

    def is_blocked(self, entry: Entry) -> bool:
        """Return whether a queued entry has no instance, or waits for another sequence's slot."""
        if entry.state is not QUEUED:
            return False
        if not self._router.count:
            return True
        return self._sequences is not None and self._sequences.is_blocked(entry)

    def add_instance(self, instance: RemoteInstance) -> None:
        """Add an instance that is ready for a batch."""
        instance.batches.idle_since_ns = _now_ns()
        self._router.add_instance(instance)
        if self._sequences is not None:
            self._sequences.add_instance(instance)
        self._executor_wait.stop_timer()
        self.wake()

    def retire_instance(self, instance: RemoteInstance) -> None:
        """Send an instance no more batches; it may finish the batches that it has."""
        self._remove_instance(instance, f"instance '{instance.name}' is gone", lost=False)
        self._transfers.begin_export(instance)

    def retire_after_sequences(self, instance: RemoteInstance) -> None:
        """Send no new sequences. Old ones continue elsewhere with their states, or end here."""
        if self._sequences is not None and not self._transfers.moves_states_of(instance):
            self._sequences.retire_instance(instance)
            if self._sequences.has_sequences(instance):
                instance.keeps_sequences = True
                self._retiring.add(instance)
                return
        self.retire_instance(instance)

    def _end_retirements(self, sequences: SequenceBatcher) -> None:
        for instance in [
            instance for instance in self._retiring if not sequences.has_sequences(instance)
        ]:
            self.retire_instance(instance)
            if not instance.at_work:
                instance.on_idle()

    def _remove_instance(self, instance: RemoteInstance, cause: str, *, lost: bool) -> None:
        if instance.keeps_sequences:
            instance.keeps_sequences = False
            self._retiring.discard(instance)
        self._waiting.remove_instance(instance)
        removed = self._router.remove_instance(instance)
        # A draining instance has left the router, but may be lost before its states were moved.
        if self._sequences is not None and (removed or lost):
            gives_states = self._transfers.moves_states_of(instance)
            self._sequences.remove_instance(instance, cause, lost=lost, gives_states=gives_states)
            self.wake()
        if removed and not self._router.count:
            self._executor_wait.restart_clock()
            self._await_instance()

    def lose_instance(self, instance: RemoteInstance, cause: str, *, begun: bool = True) -> None:
        """Run the requests of a lost instance again, ahead of the queue; at-most-once ones fail.

        begun: False if no request can have begun. For a waiting batch, no attempt is counted.
        """
        batches, waiting = instance.batches.lose_all()
        if waiting is not None:
            self._requeue_given_back(instance, waiting)
        # The lost instance's process may still be alive and read tensors in shared memory.
        for sent in batches if waiting is None else [*batches, waiting]:
            self._forget_batch(sent.batch)
            for entry in sent.batch.entries:
                entry.request.resent = True
        self._remove_instance(instance, cause, lost=True)
        instance.handing_over = False
        self._router.release_instance(instance)
        entries: list[Entry] = []
        now_ns = _now_ns()
        for sent in batches:
            entries += self._responses.lose_batch(sent, cause, now_ns)
            self._record_lost(instance, sent, now_ns, cause)
            if sent.execution is None and sent.batch.traced:
                end_attempts(instance, sent, now_ns, cause)
        if entries:
            self._retry(entries, cause, now_ns, begun=begun)
        if self._given_away:
            self.return_queued()
        if waiting is not None and not self._router.count:
            self._await_instance()
        self._transfers.fetch_snapshots()
        self.wake()

    def fail_begun(self, instance: RemoteInstance, begun: int, error: NereidError) -> None:
        """Fail an instance's batches up to number `begun`, which must not run again."""
        now_ns = _now_ns()
        waiting = instance.batches.waiting
        for sent in instance.batches.lose_begun(begun):
            if sent is waiting:
                self._waiting.on_given_back(instance, sent)
            if sent.execution is None and sent.batch.traced:
                end_attempts(instance, sent, now_ns, error.message)
            self._forget_batch(sent.batch)
            self._record_lost(instance, sent, now_ns, error.message)
            self.fail_entries(sent.open_entries(), error, now_ns)

    def _record_lost(
        self, instance: RemoteInstance, sent: SentBatch, now_ns: int, cause: str
    ) -> None:
        if sent.execution is None:
            self.timeline.record_lost(self.named, instance, sent, now_ns, cause)

    def batch_withdrawn(self, instance: RemoteInstance, number: int) -> None:
        """Queue a batch's requests again; raise ProtocolError if it was not asked back."""
        batches = instance.batches
        sent = batches.end_withdrawal(number)
        if sent is None:
            return
        self._requeue_given_back(instance, sent)
        if batches.first is None:
            # The response to the batch before it has already come, so the instance is free.
            self._release_instance(instance, _now_ns())
            if not instance.at_work:
                instance.on_idle()
        self.wake()

    def _requeue_given_back(self, instance: RemoteInstance, sent: SentBatch) -> None:
        self._forget_batch(sent.batch)
        self._waiting.on_given_back(instance, sent)
        entries = [entry for entry in sent.batch.entries if entry.state is not RESPONDED]
        if sent.batch.traced:
            for entry in entries:
                if entry.trace is not None:
                    entry.trace.undo_attempt()
        self._batcher.requeue(entries)

    def _retry(
        self, entries: Iterable[Entry], cause: str, now_ns: int, *, begun: bool = True
    ) -> None:
        if begun and self.config.at_most_once:
            self.fail_entries(entries, may_have_run(self.name, cause), now_ns)
            return
        retries = []
        for entry in entries:
            if entry.state is not RESPONDED:
                error = self._retry_error(entry, cause)
                if error is None:
                    retries.append(entry)
                else:
                    self.fail_entry(entry, error, now_ns)
        if retries:
            self._batcher.requeue(retries)
            for entry in retries:
                _log.warning("%s: its request runs again", cause, extra=about(entry))
            if not self._router.count:
                self._await_instance()

    def _retry_error(self, entry: Entry, cause: str) -> NereidError | None:
        """Return an error if an entry must not run again; else count a retry, return `None`."""
        if self._sequences is not None:
            error = self._sequences.retry_error(entry, cause)
            if error is not None:
                return error
        if entry.retries >= self.limits.max_retries:
            attempts = entry.retries + 1
            text = f"{cause}, {attempts} of {attempts} attempts to execute the request"
            return Unavailable(text, accepted=True)
        entry.retries += 1
        self.statistics.retries += 1
        if entry.retries == self.limits.max_retries:
            # The last attempt runs alone: if the entry crashes executors, no other request fails.
            entry.key = entry
        return None

    def on_reply(self, instance: RemoteInstance, message: bytes) -> None:
        """Handle an instance's message. After a ProtocolError, its stream must end."""
        self._responses.on_reply(instance, message)

    def end_execution(
        self, instance: RemoteInstance, sent: SentBatch, reply: Executed, finished_ns: int
    ) -> Execution:
        """Record that an instance has executed its first batch, and send it the next one."""
        target = self.target
        if target is not None:
            # The next batch is formed by the newest plan.
            execution = sent.end_execution(reply, finished_ns)
            if target.on_executed(sent.batch, execution.started_ns, finished_ns):
                self._log_target(target)
            self.end_first(instance, finished_ns)
            return execution
        # The instance executes the next batch while the responses are sent.
        self.end_first(instance, finished_ns)
        return sent.end_execution(reply, finished_ns)

    def _log_target(self, target: LatencyTarget) -> None:
        p99_us = target.target_ns // 1000
        if target.reachable:
            _log.info("%r can hold its target_p99_us=%d again", self, p99_us)
        else:
            _log.warning(
                "%r cannot hold its target_p99_us=%d: executing one request takes %d us; what can"
                " be held instead is %d us; raise the target, or make the model faster",
                self,
                p99_us,
                target.least_ns // 1000,
                target.held_ns // 1000,
            )

    def _forget_batch(self, batch: Batch) -> None:
        if self.target is not None:
            self.target.forget(batch)

    def record_pace(self, instance: RemoteInstance, sent: SentBatch, execution: Execution) -> None:
        """Record a batch's time, which decides whether a batch may wait at the instance."""
        self._waiting.on_executed(instance, sent, execution)

    def end_first(self, instance: RemoteInstance, now_ns: int) -> None:
        """Remove an instance's executed first batch, and let the next one begin."""
        ended = instance.batches.first
        instance.batches.end_first(now_ns)
        if instance.batches.first is not None:
            self._begin_waiting(instance, now_ns)
            return
        if ended is not None:
            self._end_batch(instance, ended, now_ns)
        self._waiting.remove_instance(instance)
        self._release_instance(instance, now_ns)

    def _end_batch(self, instance: RemoteInstance, ended: SentBatch, now_ns: int) -> None:
        taken_ns = now_ns - ended.started_ns
        if self._on_batch_end is None or taken_ns < MIN_NS:
            return
        if self._sequences is not None or self._router.count == 1:
            self._on_batch_end(instance, ended.batch, taken_ns, now_ns)

    def _release_instance(self, instance: RemoteInstance, now_ns: int) -> None:
        self._router.release_instance(instance)
        if self._sequences is None:
            # The instance executes while the responses are sent.
            if self._batcher.pending:
                self._dispatch(now_ns)
        else:
            # After the responses, the next requests of the sequences may join the batch.
            self.wake()

    def _begin_waiting(self, instance: RemoteInstance, now_ns: int) -> None:
        self._waiting.on_begun(instance)
        # Another batch can wait at the instance before the responses are sent.
        self._dispatch(now_ns)
        first = instance.batches.first
        if instance.accepts_controls and first is not None:
            for member, entry in enumerate(first.batch.entries):
                if entry.state is RESPONDED:
                    instance.send_control(first.id, member, pb.MemberControl.CANCEL)

    def close(self) -> None:
        """Cancel the timers. Call this when no entry is open."""
        super().close()
        self._executor_wait.stop_timer()
        self._waiting.close()

    def _turn(self) -> None:
        self._transfers.resume_exports()
        super()._turn()
        if self._retiring and self._sequences is not None:
            self._end_retirements(self._sequences)

    def _dispatch(self, now_ns: int) -> None:
        batcher, router = self._batcher, self._router
        waited = batcher.pending
        self._waiting.share_queue(len(self._open))
        if self._timer.at_ns <= now_ns:
            # The timer is due but has not fired yet. Entries that have expired must not run.
            self._expire_entries(now_ns)
        if batcher.pending:
            count = router.count
            while router.free:
                batch = batcher.next_batch(now_ns, count)
                if batch is None:
                    break
                self._start(batch, now_ns)
            else:
                if count:
                    batcher.form_batches(now_ns, count)
        self._timer.arm(batcher.wake_at_ns(now_ns), now_ns)
        self._waiting.send_batches(now_ns)
        if waited or self._wait_reason:
            self._update_wait(waited, now_ns)

    def _update_wait(self, requests: int, now_ns: int) -> None:
        """If the reason of the wait has changed, record the wait until now."""
        reason = self._find_wait_reason(now_ns) if self._batcher.pending else ""
        if reason == self._wait_reason:
            return
        if self._wait_reason:
            name, number = self.named
            place = name, str(number), self._wait_reason, self._wait_from_ns
            self.timeline.record_wait(Wait(*place, now_ns, requests))
        self._wait_reason, self._wait_from_ns = reason, now_ns

    def _find_wait_reason(self, now_ns: int) -> str:
        """Return why requests wait; empty if only for busy instances or for slots of sequences."""
        router = self._router
        if not router.count:
            return LOADING
        if isinstance(router, RateLimitedRouter) and router.requested:
            return RATE_LIMITER
        if not router.free or self._batcher.closes_ns(now_ns) is None:
            return ""
        return DELAY

    def _start(self, batch: Batch, now_ns: int) -> None:
        instance: RemoteInstance | None = batch.instance
        if instance is None:
            instance = self._router.acquire_instance()
        else:
            self._router.acquire(instance)
        assert instance is not None, "a batch without a free instance"
        self._last_batch_small = len(batch.entries) <= _FEW
        if self._send_batch(instance, batch, now_ns) is None:
            self._router.release_instance(instance)
        else:
            self._waiting.on_sent(instance)

    def _send_batch(self, instance: RemoteInstance, batch: Batch, now_ns: int) -> SentBatch | None:
        """Send a batch; if it cannot be sent, fail its entries and return `None`."""
        self.statistics.batches_closed[batch.reason] += 1
        try:
            sent = instance.send_batch(batch, now_ns)
        except Exception:
            _log.exception("a batch of %r cannot be sent", self)
            self._forget_batch(batch)
            error = Internal("the batch cannot be sent to an executor", accepted=True)
            # submit() must return an entry before the entry fails.
            self._loop.call_soon(self.fail_entries, batch.entries, error, now_ns)
            return None
        self._responses.on_sent(instance, sent)
        return sent

    def _await_instance(self) -> None:
        if self._only_passive:
            # submit() must return an entry before the entry fails.
            self._loop.call_soon(self._fail_all_waiting)
        else:
            self._executor_wait.start_timer()

    @property
    def _only_passive(self) -> bool:
        groups = self.config.proto.instance_group
        return bool(groups) and all(group.passive for group in groups)

    def _fail_all_waiting(self) -> None:
        for entry in list(self._open):
            if entry.state is not EXECUTING:
                self._fail_waiting(entry)

    def _fail_waiting(self, entry: Entry) -> None:
        if entry.state is RESPONDED:
            return
        self._batcher.remove_entry(entry)
        if self._only_passive:
            text = f"model '{self.name}' has only passive instances, which get no requests"
        else:
            text = (
                f"no executor has model '{self.name}' version {self.number}; waited"
                f" {self.limits.no_executor_timeout_s:g} s for one"
            )
        self.fail_entry(entry, Unavailable(text, accepted=True), _now_ns())
