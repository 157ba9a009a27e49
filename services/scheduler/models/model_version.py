"""A model version in service: the one owner of its queue, its free instances, its statistics.

Runs in one event loop and never awaits on a request's way. The batcher decides what runs together,
the router where; this acts on it. Every entry gets its last response exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nereid.core.errors import DeadlineExceeded, Internal, NereidError, Unavailable, Unimplemented
from nereid.core.messages import DECOUPLED, InferResponse, error_status_of, moved_response
from nereid.observability.metrics import CANCELED, OTHER, REJECTED
from nereid.services.scheduler.batching.batcher import make_batcher
from nereid.services.scheduler.batching.sequences.sequence_batcher import SequenceBatcher
from nereid.services.scheduler.caching.response_cache import ResponseCache
from nereid.services.scheduler.executors.executor_wait import ExecutorWait
from nereid.services.scheduler.executors.instance import cancel_member
from nereid.services.scheduler.executors.router import Router
from nereid.services.scheduler.models.queue_limits import QueueLimits
from nereid.services.scheduler.models.state_transfers import StateTransfers
from nereid.services.scheduler.observability.request_traces import end_attempts
from nereid.services.scheduler.observability.statistics import ModelStatistics
from nereid.services.scheduler.rate_limiting.rate_limited_batcher import (
    RateLimitedBatcher,
    RateLimitedRouter,
)
from nereid.services.scheduler.requests.deferred_responses import DeferredResponses, drop_deferred
from nereid.services.scheduler.requests.entry import (
    EXECUTING,
    RESPONDED,
    Entry,
    RequestState,
    about,
)
from nereid.services.scheduler.requests.resent_requests import may_have_run
from nereid.services.scheduler.requests.response_order import ResponseOrder
from nereid.services.scheduler.requests.segment_owners import SegmentOwners
from nereid.services.scheduler.requests.validation import Validator
from nereid.services.scheduler.timer import RearmableTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.core.messages import InferRequest
    from nereid.model_config import ModelConfig
    from nereid.pb import nereid_pb2 as pb
    from nereid.services.scheduler.batching.batcher import Batcher
    from nereid.services.scheduler.caching.cache_client import CacheClient
    from nereid.services.scheduler.executors.instance import Instance, Running
    from nereid.services.scheduler.observability.entry_trace import Traces
    from nereid.services.scheduler.observability.latencies import Latencies
    from nereid.services.scheduler.rate_limiting.rate_limiter import RateLimiter
    from nereid.services.scheduler.requests.entry import Batch

    OnResponse = Callable[[InferResponse], None]

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns
# After a batch of more requests than this, one that comes alone waits for others of its loop turn.
_FEW: Final = 2


@dataclass(frozen=True, slots=True)
class VersionContext:
    """What a version is given beside its configuration; most of it is shared by all versions."""

    limits: QueueLimits = field(default_factory=QueueLimits)
    # None: no request is traced.
    traces: Traces | None = None
    # Used where the configuration enables the response cache; None: there is no cache.
    cache: CacheClient | None = None
    segment_owners: SegmentOwners = field(default_factory=SegmentOwners)
    # Where quantiles or histograms are wanted.
    latencies: Latencies | None = None
    # Where snapshots of sequences are kept; None: here.
    snapshots: CacheClient | None = None
    # None: an instance executes as soon as it is free.
    rate_limiter: RateLimiter[Instance] | None = None


class ModelVersion:
    """The requests of one model version, from acceptance to the last response."""

    # Whether it responds by calling other models; others have instances.
    asks_others = False

    def __init__(self, config: ModelConfig, number: int, context: VersionContext) -> None:
        self.config = config
        self.number = number
        self.name = config.name
        self.statistics = ModelStatistics(context.latencies)
        self.segment_owners = context.segment_owners
        self.revision = b""  # of its files, where there is a response cache
        self._limits = limits = context.limits
        self._traces = context.traces
        self._validator = Validator(config)
        self._deferred = DeferredResponses(self.statistics, self._on_response)
        limiter = context.rate_limiter
        limited = None if limiter is None else RateLimitedRouter(limiter)
        self._router: Router[Instance] = limited or Router()
        batcher = make_batcher(
            config,
            self._router,
            max_pending=limits.max_queue_size,
            admission=limits.admission_of(config),
        )
        self._sequences = batcher if isinstance(batcher, SequenceBatcher) else None
        self._batcher: Batcher = (
            batcher if limited is None else RateLimitedBatcher(batcher, limited, self.wake)
        )
        # Instances that are kept for the sequences that they have.
        self._retiring: set[Instance] = set()
        # Where sequences have implicit state, and one response to each request: else any of several
        # may change it, also after the instance has executed.
        self._transfers: StateTransfers | None = None
        iterates = config.sequences is not None and config.sequences.iterative
        has_state = bool(config.proto.sequence_batching.state)
        if self._sequences is not None and has_state and not (config.decoupled or iterates):
            self._transfers = StateTransfers(
                f"{self!r}", self._sequences.moves, self.wake, context.snapshots
            )
        batching = config.batching if config.sequences is None else config.sequences.oldest
        keeps_order = batching is not None and batching.preserve_ordering
        self._order = ResponseOrder[tuple[Entry, InferResponse]]() if keeps_order else None
        # It had few requests: one that comes alone now is probably the only one.
        self._last_batch_small = True
        self._open: dict[Entry, None] = {}  # without their last response, in order of arrival
        self._idle: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._turn_due = False
        self._timer = RearmableTimer(self._on_timer)
        self._executor_wait = ExecutorWait(
            limits.no_executor_timeout_s, self._open, self._fail_waiting
        )
        self.cache: ResponseCache | None = None
        if config.response_cache and context.cache is not None:
            self.cache = ResponseCache(self, context.cache, limits.max_queue_size)

    def __repr__(self) -> str:
        return f"'{self.name}' version {self.number}"

    @property
    def decoupled(self) -> bool:
        """Whether its requests have any number of responses."""
        return self.config.decoupled

    @property
    def pending(self) -> int:
        """How many requests wait for an instance."""
        return self._batcher.pending

    @property
    def in_use(self) -> bool:
        """Whether it has requests without their last response, or sequences that live."""
        return bool(self._open) or any(self.sequences or ())

    @property
    def instances(self) -> tuple[int, int]:
        """How many instances are ready, and how many of these are free."""
        return self._router.count, self._router.free

    @property
    def sequences(self) -> tuple[int, int] | None:
        """How many sequences are live, and how many wait for a slot; None: it has none."""
        if self._sequences is None:
            return None
        return len(self._sequences.sequences), self._sequences.sequences.backlog

    def set_revision(self, revision: bytes) -> None:
        """Its files, or the models of its steps, are of this revision from now on."""
        self.revision = revision
        if self.cache is not None:
            # A sequence of responses cannot be cached.
            self.cache.set_revision(self.number, None if self.config.decoupled else revision)

    # ---- requests

    def submit(
        self, request: InferRequest, on_response: OnResponse, *, at_once: bool = False
    ) -> Entry:
        """Accept a request; on_response is called once, after this has returned.

        at_once: nothing else comes with it that it, or what waits, could share a batch with.

        Raises:
            NereidError: it was refused, and on_response will not be called.
        """
        if self.config.decoupled:
            self.check_client(request)
        now_ns = _now_ns()
        entry = self._validator.make_entry(request, on_response, self, now_ns)
        if self._traces is not None and request.trace_context:
            entry.trace = self._traces.begin(request, now_ns)
        if entry.deadline_ns is not None and entry.deadline_ns <= now_ns:
            raise DeadlineExceeded("the deadline passed before the request arrived", accepted=True)
        at_once = at_once and self._last_batch_small
        if at_once and self._start_alone(entry, now_ns):
            return entry
        try:
            if self.cache is None:
                self._batcher.enqueue(entry, now_ns)
            else:
                self.cache.submit_entry(entry, now_ns)
        except Unavailable as error:
            error.retry_after_ms = self.statistics.record_refusal(len(self._open), now_ns)
            raise
        self._open[entry] = None
        if self._order is not None:
            self._order.append_request(entry)
        if at_once and self._router.free:
            self._dispatch(now_ns)
        else:
            self.wake()
        if not self._router.count:
            self._await_instance()
        return entry

    def _start_alone(self, entry: Entry, now_ns: int) -> bool:
        """Execute an entry by itself, if nothing waits and an instance is free."""
        if (
            not self._router.free_instances
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

    def check_client(self, request: InferRequest) -> None:
        """Raise if the model is decoupled and the client accepts only one response."""
        if self.config.decoupled and not request.accepts_many:
            raise Unimplemented(DECOUPLED, accepted=True)

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """Do nothing: of a single response nothing can be held back."""

    def cancel(self, entry: Entry) -> None:
        """The entry's client has cancelled. Its batchmates run as before."""
        if entry.state is RESPONDED:
            return
        if self._batcher.remove_entry(entry) or entry.state is RequestState.CACHE_LOOKUP:
            self.statistics.record_failure(entry, _now_ns(), CANCELED)
        elif not self.config.decoupled:
            cancel_member(entry, self._router)
        self._close(entry, None)
        self.wake()

    # ---- for its response cache

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raises Unavailable when the queue is full."""
        self._batcher.enqueue(entry, now_ns)
        self.wake()

    def finish(self, entry: Entry, response: InferResponse) -> None:
        """Respond to an entry that was not queued."""
        self._close(entry, response)

    def fail(self, entry: Entry, error: NereidError, now_ns: int) -> None:
        """Fail an entry that no instance has."""
        self._batcher.remove_entry(entry)
        reason = REJECTED if isinstance(error, Unavailable) else CANCELED
        self._fail(entry, error, now_ns, reason)

    # ---- instances

    def add_instance(self, instance: Instance) -> None:
        """It is ready for a batch."""
        self._router.add_instance(instance)
        if self._sequences is not None:
            self._sequences.add_instance(instance)
        self._executor_wait.stop_timer()
        self.wake()

    def retire_instance(self, instance: Instance) -> None:
        """No more batches for it; it may finish the one that it has."""
        self._remove_instance(instance, f"instance '{instance.name}' is gone", lost=False)
        if self._transfers is not None:
            self._transfers.begin_export(instance)

    def retire_after_sequences(self, instance: Instance) -> None:
        """No new sequences for it. Those that it has go on at another instance if their states
        move, else here: it is at work until the last one is over.
        """
        moves = self._transfers is not None and instance.has_states
        if self._sequences is not None and not moves:
            self._sequences.retire_instance(instance)
            if self._sequences.has_sequences(instance):
                instance.keeps_sequences = True
                self._retiring.add(instance)
                return
        self.retire_instance(instance)

    def _end_retirements(self, sequences: SequenceBatcher) -> None:
        for instance in [each for each in self._retiring if not sequences.has_sequences(each)]:
            self.retire_instance(instance)
            if not instance.at_work:
                instance.on_idle()

    def _remove_instance(self, instance: Instance, cause: str, *, lost: bool) -> None:
        if instance.keeps_sequences:
            instance.keeps_sequences = False
            self._retiring.discard(instance)
        removed = self._router.remove_instance(instance)
        # One that drains may be lost before its sequences' states are elsewhere.
        if self._sequences is not None and (removed or lost):
            gives_states = self._transfers is not None and instance.has_states
            self._sequences.remove_instance(instance, cause, lost=lost, gives_states=gives_states)
            self.wake()
        if removed and not self._router.count:
            self._executor_wait.restart_clock()
            self._await_instance()

    def lose_instance(self, instance: Instance, cause: str, *, begun: bool = True) -> None:
        """It is lost. Its batch runs again elsewhere, ahead of the queue; or fails, if it may have
        begun and the model runs requests at most once.
        """
        self._remove_instance(instance, cause, lost=True)
        instance.handing_over = False
        self._router.release_instance(instance)
        running, instance.running = instance.running, None
        entries = drop_deferred(instance)
        now_ns = _now_ns()
        if running is not None:
            entries += running.batch.entries
            if running.batch.traced:
                end_attempts(instance, running, now_ns, cause)
        if entries:
            self._retry(entries, cause, now_ns, begun=begun)
        if self._transfers is not None:
            self._transfers.fetch_snapshots()

    def fail_begun(self, instance: Instance, begun: int, error: NereidError) -> None:
        """It is about to be lost; batches up to number `begun` must not run again."""
        now_ns = _now_ns()
        self._fail_all(drop_deferred(instance), error, now_ns)
        running = instance.running
        if running is not None and running.id <= begun:
            instance.running = None
            if running.batch.traced:
                end_attempts(instance, running, now_ns, error.message)
            self._fail_all(running.batch.entries, error, now_ns)

    def batch_withdrawn(self, instance: Instance, number: int) -> None:
        """It gives a batch back that has waited there; only instances of a PipelinedVersion do."""
        _log.error("%s gives batch %d back, which did not wait there", instance.name, number)

    def entries_at(self, instance: Instance) -> list[Entry]:
        """The entries that it executes now."""
        return [] if instance.running is None else instance.running.batch.entries

    def _retry(
        self, entries: Iterable[Entry], cause: str, now_ns: int, *, begun: bool = True
    ) -> None:
        if begun and self.config.at_most_once:
            self._fail_all(entries, may_have_run(self.name, cause), now_ns)
            self.wake()
            return
        retries = []
        for entry in entries:
            if entry.state is not RESPONDED:
                error = self._retry_error(entry, cause)
                if error is None:
                    retries.append(entry)
                else:
                    self._fail(entry, error, now_ns)
        if retries:
            self._batcher.requeue(retries)
            for entry in retries:
                _log.warning("%s: its request runs again", cause, extra=about(entry))
            if not self._router.count:
                self._await_instance()
        self.wake()

    def _retry_error(self, entry: Entry, cause: str) -> NereidError | None:
        """Why an entry may not run again; None: it may, and this attempt counts."""
        if self._sequences is not None:
            error = self._sequences.retry_error(entry)
            if error is not None:
                return error
        if entry.retries >= self._limits.max_retries:
            attempts = entry.retries + 1
            text = f"{cause}, {attempts} of {attempts} attempts to execute the request"
            return Unavailable(text, accepted=True)
        entry.retries += 1
        self.statistics.retries += 1
        if entry.retries == self._limits.max_retries:
            # Its last attempt is alone: a request that kills executors fails nobody else's.
            entry.key = entry
        return None

    def executed(self, instance: Instance, message: bytes) -> None:
        """A message from an instance: it has executed its batch, or sends deferred responses."""
        if instance.deferred and self._is_deferred(instance, message):
            return
        running, instance.running = instance.running, None
        if running is None:
            if self._transfers is not None and self._transfers.on_message(instance, message):
                return
            _log.error("response from %s to a batch that it was not sent", instance.name)
            return
        finished_ns = _now_ns()
        self._release_instance(instance, finished_ns)
        try:
            reply, responses = instance.read_outcome(message)
            running.check_reply(reply, len(responses))
        except Exception:
            _log.exception("malformed response from instance %s; its batch fails", instance.name)
            if running.batch.traced:
                end_attempts(instance, running, finished_ns)
            self._fail_all(running.batch.entries, _malformed(), finished_ns)
        else:
            self._on_batch_executed(instance, running, reply, responses, finished_ns)
        if instance.handing_over and self._transfers is not None:
            self._transfers.export(instance)
        elif not instance.at_work:
            instance.on_idle()

    def _release_instance(self, instance: Instance, now_ns: int) -> None:
        """It can execute its next batch."""
        self._router.release_instance(instance)
        if self._sequences is None:
            # Before the responses are sent: meanwhile the instance can execute.
            if self._batcher.pending:
                self._dispatch(now_ns)
        else:
            # After them: with a response its sequence's next request may join the batch.
            self.wake()

    def _is_deferred(self, instance: Instance, message: bytes) -> bool:
        now_ns = _now_ns()
        try:
            return self._deferred.on_message(instance, message, now_ns)
        except Exception:
            _log.exception(
                "malformed deferred response from instance %s; its deferred requests fail",
                instance.name,
            )
            self._fail_all(drop_deferred(instance), _malformed(), now_ns)
            return True

    # ---- the end

    def fail_all(self, error: NereidError) -> None:
        """Fail every open entry."""
        now_ns = _now_ns()
        for entry in list(self._open):
            # The leader of a flight fails its followers as well.
            if entry.state is not RESPONDED:
                self._batcher.remove_entry(entry)
                self._fail(entry, error, now_ns)

    def return_queued(self) -> None:
        """Return the entries that no instance has: another scheduler has the model now."""
        for entry in list(self._open):
            if entry.state not in (EXECUTING, RESPONDED):
                self._batcher.remove_entry(entry)
                if self.cache is not None and entry.cache_lookup is not None:
                    # As if it were cancelled: its followers are returned one after the other.
                    self.cache.end_entry(entry, None)
                self._close(entry, moved_response(entry.request.id))

    async def idle(self) -> None:
        """Wait until no entry is open."""
        while self._open:
            self._idle = self._idle or self._loop.create_future()
            await asyncio.shield(self._idle)

    def close(self) -> None:
        """Cancel the timers; call when no entry is open."""
        self._executor_wait.stop_timer()
        self._timer.cancel()

    # ---- dispatch

    def wake(self) -> None:
        """Dispatch at the end of this loop turn."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        now_ns = _now_ns()
        if self._transfers is not None:
            self._transfers.resume_exports()
        self._expire_entries(now_ns)
        self._dispatch(now_ns)
        if self._retiring and self._sequences is not None:
            self._end_retirements(self._sequences)

    def _expire_entries(self, now_ns: int) -> None:
        for entry, error in self._batcher.expire_entries(now_ns):
            reason = CANCELED  # by its client's deadline
            if isinstance(error, Unavailable):
                reason = REJECTED  # by its queue's policy
                error.retry_after_ms = self.statistics.foresee_drain(len(self._open), now_ns)
            self._fail(entry, error, now_ns, reason)

    def _dispatch(self, now_ns: int) -> None:
        """Send each free instance the batch to run now, and arm the timer for the next look."""
        batcher, router = self._batcher, self._router
        if self._timer.at_ns <= now_ns:
            # The loop is behind its timers: what has expired must not run.
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

    def _start(self, batch: Batch, now_ns: int) -> Instance:
        instance: Instance | None = batch.instance
        if instance is None:
            instance = self._router.acquire_instance()
        else:
            self._router.acquire(instance)
        assert instance is not None, "a batch without a free instance"
        self._last_batch_small = len(batch.entries) <= _FEW
        self.statistics.batches_closed[batch.reason] += 1
        try:
            instance.execute(batch, now_ns)
        except Exception:
            _log.exception("a batch of %r cannot be sent", self)
            self._router.release_instance(instance)
            error = Internal("the batch cannot be sent to an executor", accepted=True)
            # Later: the caller of submit() must have its entry before the entry fails.
            self._loop.call_soon(self._fail_all, batch.entries, error, now_ns)
        return instance

    def _on_timer(self) -> None:
        if not self._turn_due:
            self._turn()

    # ---- responses

    def _on_batch_executed(
        self,
        instance: Instance,
        running: Running,
        reply: pb.Executed,
        responses: list[InferResponse],
        finished_ns: int,
    ) -> None:
        """responses: those of the reply, unless it is partial."""
        execution = running.execution(reply, finished_ns)
        if running.batch.traced:
            end_attempts(instance, running, finished_ns)
        if reply.partial:
            if self._transfers is not None:
                self._transfers.defer_batch(running.batch.entries)
            self._deferred.defer_batch(instance, running, reply, execution)
            return
        entries = running.batch.entries
        failed = [
            entry
            for entry, response in zip(entries, responses, strict=True)
            # As on Triton, a request whose model responds with an error was served.
            if response.error and not response.error.by_model
        ]
        if self._transfers is not None:
            self._transfers.end_batch(entries, responses, reply)
        self.statistics.record_batch(running.batch, execution, failed)
        for entry, response in zip(entries, responses, strict=True):
            entry.execution = execution
            self._on_response(entry, response, running)

    def _on_response(self, entry: Entry, response: InferResponse, running: Running) -> None:
        if entry.state is RESPONDED:
            self.segment_owners.drop_response(response)  # cancelled while it ran
        elif entry.cache_lookup is None or self.cache is None:
            self._close(entry, response)
        else:
            entry.revision = running.revision
            inline = self.cache.needs_inline(entry.cache_lookup, response)
            self._close(
                entry, self.segment_owners.inline_response(response) if inline else response
            )

    def _fail_all(self, entries: Iterable[Entry], error: NereidError, now_ns: int) -> None:
        for entry in entries:
            if entry.state is not RESPONDED:
                self._fail(entry, error, now_ns)

    def _fail(self, entry: Entry, error: NereidError, now_ns: int, reason: str = OTHER) -> None:
        self.statistics.record_failure(entry, now_ns, reason)
        _log.debug("a request of %r failed: %s", self, error.message, extra=about(entry))
        self._close(entry, InferResponse(0, error=error_status_of(error)))

    def _close(self, entry: Entry, response: InferResponse | None) -> None:
        """Send an entry's last response; None: it was cancelled."""
        entry.state = RESPONDED
        del self._open[entry]
        if self._sequences is not None:
            self._sequences.end_entry(entry, _now_ns())
            if not self._turn_due:
                self.wake()
        if entry.trace is not None:
            entry.trace.end(entry, (self.name, self.number), response, _now_ns())
        if self._order is not None:
            last = None if response is None else (entry, response)
            for earlier, held in self._order.end_request(entry, last):
                earlier.respond(held)
        elif response is not None:
            entry.respond(response)
        if self.cache is not None and entry.cache_lookup is not None:
            self.cache.end_entry(entry, response)
        if self._idle is not None and not self._open:
            self._idle.set_result(None)
            self._idle = None

    # ---- no instance anywhere

    def _await_instance(self) -> None:
        """Limit how long the open entries wait for an instance."""
        if self._only_passive:
            # Later: the caller of submit() must have its entry before the entry fails.
            self._loop.call_soon(self._fail_all_waiting)
        else:
            self._executor_wait.start_timer()

    @property
    def _only_passive(self) -> bool:
        """Whether no executor will ever have an instance for requests."""
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
                f" {self._limits.no_executor_timeout_s:g} s for one"
            )
        self._fail(entry, Unavailable(text, accepted=True), _now_ns())


def _malformed() -> Internal:
    return Internal("the executor's response cannot be understood", accepted=True)
