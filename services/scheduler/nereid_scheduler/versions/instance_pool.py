"""The instances of a model version, and the batches that they execute.

Only this module changes the batches of instances. The batcher decides which requests run together,
and plan() at which instance. The module must not know how an executor loads a model, nor what a
repository is.

    dispatch         send the planned batches
    on_reply         record what was executed, dispatch, then send the responses
    lose_instance    what the instance had runs again
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from nereid.core.errors import Internal, NereidError
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.batching.batcher import holds_target, make_batcher, target_of
from nereid_scheduler.batching.policies.gathering import MIN_NS
from nereid_scheduler.batching.rate_limiting.rate_limited_batcher import (
    RateLimitedBatcher,
    RateLimitedRouter,
)
from nereid_scheduler.batching.sequences.iterative import IterativeBatcher
from nereid_scheduler.batching.sequences.sequence_batcher import SequenceBatcher
from nereid_scheduler.batching.times.batch_times import BatchTimes
from nereid_scheduler.core.instances.router import Router
from nereid_scheduler.core.requests.entry import QUEUED, RESPONDED, Entry
from nereid_scheduler.versions.dispatcher import Dispatcher
from nereid_scheduler.versions.plan import plan
from nereid_scheduler.versions.replies import Replies
from nereid_scheduler.versions.reruns.lost_requests import LostRequests
from nereid_scheduler.versions.roster import Roster
from nereid_scheduler.versions.state_transfers import NO_TRANSFERS, StateTransfers
from nereid_scheduler.versions.waiting_batches import (
    NO_WAITING_BATCHES,
    WaitingBatches,
    lets_batches_wait,
)
from nereid_scheduler.versions.waits.executor_wait import ExecutorWait
from nereid_scheduler.versions.waits.wait_record import WaitRecord

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid.core.wire.executed import Executed
    from nereid.model_config import ModelConfig
    from nereid_scheduler.batching.batcher import LatencyTarget
    from nereid_scheduler.core.instances.instance_batches import SentBatch
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.requests.entry import Batch
    from nereid_scheduler.core.requests.execution import Execution
    from nereid_scheduler.versions.open_requests import OpenRequests
    from nereid_scheduler.versions.steps import Turns
    from nereid_scheduler.versions.version_context import VersionContext

_log = logging.getLogger(__name__)
_now_ns: Final = time.monotonic_ns
# After a larger batch, requests wait until the end of the event loop's turn, as others may come and
# share their batch.
_FEW: Final = 2


class InstancePool(Dispatcher):
    """Dispatcher that executes the requests of one version on its instances."""

    def __init__(
        self, config: ModelConfig, context: VersionContext, requests: OpenRequests, turns: Turns
    ) -> None:
        self._requests = requests
        self._turns = turns
        self._steps = context.steps
        limits, limiter = context.limits, context.rate_limiter
        limited = None if limiter is None else RateLimitedRouter(limiter)
        self._router: Router[RemoteInstance] = limited or Router()
        # Measured times of the version's batches.
        self.times = BatchTimes(by_rows=holds_target(config))
        batcher = make_batcher(
            config,
            self._router,
            self.times,
            requests.entries,
            max_pending=limits.max_queue_size,
            admission=limits.admission_of(config),
            client_share=limits.client_sequence_share,
        )
        self._sequences = batcher if isinstance(batcher, SequenceBatcher) else None
        super().__init__(
            batcher if limited is None else RateLimitedBatcher(batcher, limited, turns.wake),
            target_of(batcher),
        )
        iterations = batcher if isinstance(batcher, IterativeBatcher) else None
        # States move only with single responses: each of several may change the state later.
        self._transfers: StateTransfers = NO_TRANSFERS
        if (
            self._sequences is not None
            and config.proto.sequence_batching.state
            and not (config.decoupled or iterations is not None)
        ):
            self._transfers = StateTransfers(
                repr(requests), self._sequences.moves, turns.wake, context.snapshots
            )
        self._replies = Replies(self, requests, config, self._transfers, iterations, limits)
        if self._replies.one_by_one:
            requests.notify_ended(self._replies.end_entry)
        if self._sequences is not None:
            requests.notify_ended(self._end_in_sequence)
        self._waiting: WaitingBatches = NO_WAITING_BATCHES
        # With a rate limiter no batch waits at an instance, since the instance may execute only
        # when it holds its resources.
        if limits.waiting_batches > 0 and limiter is None and lets_batches_wait(config):
            self._waiting = WaitingBatches(config, self._router, self.times)
        # True if the reply at hand has freed an instance, or let its second batch begin.
        self._has_freed = False
        # If True, the requests of an input are probably the only ones of this turn.
        self._last_batch_small = True
        self._lost = LostRequests(
            config, requests, self.batcher, self._sequences, limits.max_retries
        )
        self._executor_wait = ExecutorWait(
            config, requests, self.batcher, limits.no_executor_timeout_s
        )
        self.roster = Roster(
            self._router,
            self._sequences,
            self._waiting,
            self.times,
            self._transfers,
            self._executor_wait,
            turns,
        )
        self._wait = WaitRecord(requests.records, self.batcher, self._router)

    @property
    def pending(self) -> int:
        """Number of requests that wait in the queue or at an instance."""
        return self.batcher.pending + self._waiting.requests

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

    def has_sequence(self, key: Hashable) -> bool:
        """Return whether a sequence accepts requests. key: as `sequence_key` returns it."""
        return self._sequences is not None and key in self._sequences.sequences

    def end_sequence(self, key: Hashable) -> None:
        """End a sequence of copies, which no request will end."""
        if self._sequences is not None:
            self._sequences.end_sequence(key)
            self._turns.wake()

    # ---- requests

    def on_queued(self) -> None:
        """See to it that a request that was just queued gets its turn."""
        if self._last_batch_small and self._router.free:
            self._turns.ask()
        else:
            self._turns.wake()
        if not self._router.count:
            self._executor_wait.begin()

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """Pause or resume the responses to an entry at its instance."""
        self._replies.set_flow(entry, paused=paused)

    def cancel_execution(self, entry: Entry) -> str:
        """Notify the instance that has an entry; the entry counts with its batch."""
        self._replies.cancel(entry, self._router)
        return ""

    def is_blocked(self, entry: Entry) -> bool:
        """Return whether a queued entry has no instance, or waits for another sequence's slot."""
        if entry.state is not QUEUED:
            return False
        if not self._router.count:
            return True
        return self._sequences is not None and self._sequences.is_blocked(entry)

    def _end_in_sequence(self, entry: Entry) -> None:
        assert self._sequences is not None
        self._sequences.end_entry(entry, _now_ns())
        self._turns.wake()

    def end_sequences(self, cause: str) -> None:
        """End the sequences that have begun: their next requests must START."""
        if self._sequences is not None:
            self._sequences.end_sequences(cause, self._requests.entries)
            self._turns.wake()

    # ---- batches

    def wake(self) -> None:
        """Take a step at the end of this turn, as requests were queued again."""
        self._turns.wake()

    def dispatch(self, now_ns: int) -> int | None:
        """Send the batches that are due; return when the next step is due."""
        self._transfers.resume_exports()
        if self._waiting.requests:
            for instance in self._waiting.overdue(now_ns):
                instance.withdraw_waiting()
        batcher = self.batcher
        waited = pending = batcher.pending
        while pending:
            planned = plan(batcher, self._router, self._waiting, now_ns)
            if not planned:
                break
            for instance, batch in planned:
                self._last_batch_small = len(batch.entries) <= _FEW
                self._send_batch(instance, batch, now_ns)
            pending = batcher.pending
        if pending or self._wait.reason:
            self._wait.update(waited, now_ns)
        self.roster.end_retirements()
        at_ns = batcher.wake_at_ns(now_ns)
        if self._waiting.requests:
            overdue_ns = self._waiting.wake_at_ns()
            if at_ns is None or (overdue_ns is not None and overdue_ns < at_ns):
                return overdue_ns
        return at_ns

    def _send_batch(self, instance: RemoteInstance, batch: Batch, now_ns: int) -> None:
        """Send a batch to an instance; if it cannot be sent, fail its entries."""
        requests = self._requests
        requests.records.begin_batch(batch)
        is_second = instance.batches.first is not None
        try:
            sent = instance.send_batch(batch, now_ns)
        except Exception:
            _log.exception("a batch of %r cannot be sent", requests)
            self._forget_batch(batch)
            if not is_second:
                self._router.release_instance(instance)
            error = Internal("the batch cannot be sent to an executor", accepted=True)
            # submit() must return an entry before the entry fails.
            self._turns.call_soon(requests.fail_entries, batch.entries, error)
            return
        if is_second:
            self._waiting.on_sent_second(instance, sent)
        else:
            self._waiting.on_sent(instance)
        self._replies.on_sent(instance, sent)

    def on_reply(self, instance: RemoteInstance, message: bytes) -> None:
        """Handle a message from an instance.

        Raises:
            ProtocolError: the message is invalid. Nothing has changed, and the instance's stream
                must end.
        """
        now_ns = _now_ns()
        steps = self._steps
        steps.begin_input()
        try:
            reply = self._replies.read(instance, message, now_ns)
            if self._has_freed:
                self._has_freed = False
                if self._sequences is not None:
                    # The next requests of sequences may join the batch once they have responses.
                    self._turns.wake()
                elif self.batcher.pending:
                    self._turns.ask()
                # The instance executes its next batch while the responses are sent.
                steps.take_steps()
            self._replies.respond(instance, reply, now_ns)
        finally:
            steps.end_input()
        if self.target is None and reply is not None and reply.execution is not None:
            self._record_times(instance, reply.sent, reply.execution)

    def end_execution(
        self, instance: RemoteInstance, sent: SentBatch, reply: Executed, finished_ns: int
    ) -> Execution:
        """Record that an instance has executed its first batch, and what was measured."""
        execution = sent.end_execution(reply, finished_ns)
        target = self.target
        if target is not None:
            # The next batch is planned by the newest times. Otherwise responses come first.
            self._record_times(instance, sent, execution)
            if target.on_executed(sent.batch, finished_ns):
                _log_target(self._requests, target)
        self._end_first(instance, finished_ns)
        return execution

    def _record_times(
        self, instance: RemoteInstance, sent: SentBatch, execution: Execution
    ) -> None:
        # An instance that has left would be kept by the table for ever.
        if instance in self._router:
            self.times.record(instance, sent.batch, execution, waited=sent.waited_since_ns > 0)

    def _end_first(self, instance: RemoteInstance, now_ns: int) -> None:
        """Remove an instance's first batch, which was executed, and let the next one begin."""
        batches = instance.batches
        ended = batches.first
        assert ended is not None, "no batch that could have been executed"
        batches.end_first(now_ns)
        self._has_freed = True
        first = batches.first
        if first is not None:
            # The batch that has waited there begins.
            self._waiting.on_begun(instance)
            if instance.accepts_controls:
                for member, entry in enumerate(first.batch.entries):
                    if entry.state is RESPONDED:
                        instance.send_control(first.id, member, pb.MemberControl.CANCEL)
            return
        taken_ns = now_ns - ended.started_ns
        if taken_ns >= MIN_NS and (self._sequences is not None or self._router.count == 1):
            self.batcher.batch_ended(instance, ended.batch, taken_ns, now_ns)
        self._waiting.remove_instance(instance)
        self._router.release_instance(instance)

    def _forget_batch(self, batch: Batch) -> None:
        if self.target is not None:
            self.target.forget(batch)

    # ---- lost instances and batches that were given back

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
        self.roster.remove(instance, cause, lost=True)
        instance.handing_over = False
        self._router.release_instance(instance)
        entries: list[Entry] = []
        now_ns = _now_ns()
        for sent in batches:
            entries += self._replies.lose_batch(sent, cause)
            self._end_lost(sent, now_ns, cause)
        queued = bool(entries) and self._lost.retry(entries, cause, begun=begun)
        if (queued or waiting is not None) and not self._router.count:
            self._executor_wait.begin()
        self._transfers.fetch_snapshots()
        self._turns.wake()

    def fail_begun(self, instance: RemoteInstance, begun: int, error: NereidError) -> None:
        """Fail an instance's batches up to number `begun`, which must not run again."""
        now_ns = _now_ns()
        waiting = instance.batches.waiting
        for sent in instance.batches.lose_begun(begun):
            if sent is waiting:
                self._waiting.on_given_back(instance, sent)
            self._forget_batch(sent.batch)
            self._end_lost(sent, now_ns, error.message)
            self._requests.fail_entries(sent.open_entries(), error)

    def _end_lost(self, sent: SentBatch, now_ns: int, cause: str) -> None:
        if sent.execution is None:
            sent.error = cause
            self._requests.records.end_batch(sent, sent.lost_execution(now_ns))

    def batch_withdrawn(self, instance: RemoteInstance, number: int) -> None:
        """Queue a batch's requests again; raise ProtocolError if it was not asked back."""
        batches = instance.batches
        sent = batches.end_withdrawal(number)
        if sent is None:
            return
        self._requeue_given_back(instance, sent)
        if batches.first is None:
            # The response to the batch before it has already come, so the instance is free.
            self._router.release_instance(instance)
            if not instance.at_work:
                instance.on_idle()
        self._turns.wake()

    def _requeue_given_back(self, instance: RemoteInstance, sent: SentBatch) -> None:
        self._forget_batch(sent.batch)
        self._waiting.on_given_back(instance, sent)
        self._requests.records.give_back(sent.batch)
        self.batcher.requeue(
            [entry for entry in sent.batch.entries if entry.state is not RESPONDED]
        )

    def set_config(self, config: ModelConfig) -> None:
        """Set a configuration with other instance groups."""
        self._executor_wait.set_config(config)

    def close(self) -> None:
        """Cancel the timers."""
        self._executor_wait.end()


def _log_target(requests: OpenRequests, target: LatencyTarget) -> None:
    p99_us = target.target_ns // 1000
    if target.reachable:
        _log.info("%r can hold its target_p99_us=%d again", requests, p99_us)
    else:
        _log.warning(
            "%r cannot hold its target_p99_us=%d: executing one request takes %d us; what can"
            " be held instead is %d us; raise the target, or make the model faster",
            requests,
            p99_us,
            target.least_ns // 1000,
            target.held_ns // 1000,
        )
