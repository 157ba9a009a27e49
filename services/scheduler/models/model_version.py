"""A model version in service: the one owner of its queue, its free instances, its statistics.

Runs in one event loop and never awaits on the way of a request. What runs together and where is
decided by the batcher and the router; this acts on it. Every entry is answered exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from nereid.core.codecs import read_response
from nereid.core.errors import DeadlineExceeded, Internal, NereidError, Unavailable
from nereid.core.messages import InferResponse, error_status_of
from nereid.observability.metrics import CANCELED, OTHER, REJECTED
from nereid.services.scheduler.batching.batcher import make_batcher
from nereid.services.scheduler.executors.executor_wait import Patience
from nereid.services.scheduler.executors.instance import withdraw
from nereid.services.scheduler.executors.router import Router
from nereid.services.scheduler.observability.request_traces import end_attempts
from nereid.services.scheduler.observability.statistics import ModelStatistics
from nereid.services.scheduler.requests.deferred_responses import LateResponses, lose
from nereid.services.scheduler.requests.entry import Entry, State, about, tell
from nereid.services.scheduler.requests.response_order import ReplyOrder
from nereid.services.scheduler.requests.shared_tensors import SharedTensors
from nereid.services.scheduler.requests.validation import Validator
from nereid.services.scheduler.timer import Alarm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.core.messages import InferRequest
    from nereid.model_config import ModelConfig
    from nereid.pb import nereid_pb2 as pb
    from nereid.services.scheduler.caching.response_cache import ResponseCache
    from nereid.services.scheduler.executors.instance import Instance, Running
    from nereid.services.scheduler.models.queue_limits import QueueLimits
    from nereid.services.scheduler.observability.entry_trace import Traces
    from nereid.services.scheduler.requests.entry import Batch

    OnResponse = Callable[[InferResponse], None]

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns


class ModelVersion:
    """The requests of one model version, from acceptance to answer."""

    # Whether it answers by what it asks of other models; others have instances.
    asks_others = False

    def __init__(
        self,
        config: ModelConfig,
        number: int,
        limits: QueueLimits,
        traces: Traces | None = None,
    ) -> None:
        self.config = config
        self.number = number
        self.name = config.name
        self.statistics = ModelStatistics()
        self._late = LateResponses(self.statistics, self._response)
        self.cache: ResponseCache | None = None  # set where it may answer requests
        self.shared_tensors = SharedTensors()
        self.revision = b""  # what it is at present, where there is a cache
        self._limits = limits
        self._traces = traces  # None: no request is traced
        self._validator = Validator(config)
        self._batcher = make_batcher(config, max_pending=limits.max_queue_size)
        self._router: Router[Instance] = Router()
        keeps_order = config.batching is not None and config.batching.preserve_ordering
        self._order = ReplyOrder[tuple[Entry, InferResponse]]() if keeps_order else None
        self._open: dict[Entry, None] = {}  # accepted and not answered, in order of arrival
        self._idle: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._turn_due = False
        self._alarm = Alarm(self._timer_fired)
        self._patience = Patience(limits.no_executor_timeout_s, self._open, self._forsake)

    def __repr__(self) -> str:
        return f"'{self.name}' version {self.number}"

    @property
    def pending(self) -> int:
        """How many requests wait for an instance."""
        return self._batcher.pending

    @property
    def instances(self) -> tuple[int, int]:
        """How many instances are ready, and how many of these are free."""
        return self._router.count, self._router.free

    # ---- requests

    def submit(
        self, request: InferRequest, on_response: OnResponse, *, at_once: bool = False
    ) -> Entry:
        """Accept a request; on_answer is called once, after this has returned.

        at_once: nothing else is coming in this loop turn that it could share a batch with.

        Raises:
            NereidError: it was refused, and on_answer will not be called.
        """
        now_ns = _now_ns()
        entry = self._validator.accept(request, on_response, now_ns)
        if self._traces is not None and request.trace_context:
            entry.trace = self._traces.begin(request, now_ns)
        if entry.deadline_ns is not None and entry.deadline_ns <= now_ns:
            raise DeadlineExceeded("the deadline passed before the request arrived", accepted=True)
        try:
            if self.cache is None:
                self._batcher.add(entry, now_ns)
            else:
                self.cache.admit(entry, now_ns)
        except Unavailable:
            self.statistics.failures[REJECTED] += 1
            raise
        self._open[entry] = None
        if self._order is not None:
            self._order.admit(entry)
        if at_once and self._batcher.pending == 1 and self._router.free and not self._turn_due:
            self._dispatch(now_ns)
        else:
            self.wake()
        if not self._router.count:
            self._await_instance()
        return entry

    def cancel(self, entry: Entry) -> None:
        """Nobody waits for this entry any more. Its batchmates never notice."""
        if entry.state is State.RESPONDED:
            return
        if self._batcher.remove(entry) or entry.state is State.WAITING:
            self.statistics.record_failure(entry, _now_ns(), CANCELED)
        elif not self.config.decoupled:
            withdraw(entry, self._router)
        self._close(entry, None)
        self.wake()

    # ---- what its cache asks of it

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raises Unavailable when the queue is full."""
        self._batcher.add(entry, now_ns)
        self.wake()

    def finish(self, entry: Entry, response: InferResponse) -> None:
        """Answer an entry that was not queued."""
        self._close(entry, response)

    def fail(self, entry: Entry, error: NereidError, now_ns: int) -> None:
        """Fail an entry that no instance has."""
        self._batcher.remove(entry)
        reason = REJECTED if isinstance(error, Unavailable) else CANCELED
        self._fail(entry, error, now_ns, reason)

    # ---- instances

    def add_instance(self, instance: Instance) -> None:
        """It is ready for a batch."""
        self._router.add(instance)
        self._patience.end()
        self.wake()

    def retire_instance(self, instance: Instance) -> None:
        """No more batches for it; what it has it may finish."""
        if self._router.remove(instance) and not self._router.count:
            self._patience.strand()
            self._await_instance()

    def lose_instance(self, instance: Instance, cause: str) -> None:
        """It is gone. The batch it had runs again elsewhere, ahead of all others."""
        self.retire_instance(instance)
        running, instance.running = instance.running, None
        entries = lose(instance)
        now_ns = _now_ns()
        if running is not None:
            entries += running.batch.entries
            if running.batch.traced:
                end_attempts(instance, running, now_ns, cause)
        if entries:
            self._run_again(entries, cause, now_ns)

    def fail_begun(self, instance: Instance, begun: int, error: NereidError) -> None:
        """It is about to be lost; what it had of batches up to this one must not run again."""
        now_ns = _now_ns()
        self._fail_open(lose(instance), error, now_ns)
        running = instance.running
        if running is not None and running.id <= begun:
            instance.running = None
            if running.batch.traced:
                end_attempts(instance, running, now_ns, error.message)
            self._fail_open(running.batch.entries, error, now_ns)

    def _run_again(self, entries: Iterable[Entry], cause: str, now_ns: int) -> None:
        again = []
        for entry in entries:
            if entry.state is State.RESPONDED:
                continue
            if entry.retries < self._limits.max_retries:
                entry.retries += 1
                self.statistics.retries += 1
                if entry.retries == self._limits.max_retries:
                    # Alone: if it kills executors, it shall not take others along again.
                    entry.key = entry
                again.append(entry)
            else:
                attempts = entry.retries + 1
                text = f"{cause}, {attempts} of {attempts} attempts to execute the request"
                self._fail(entry, Unavailable(text, accepted=True), now_ns)
        if again:
            self._batcher.put_back(again)
            for entry in again:
                _log.warning("%s: its request runs again", cause, extra=about(entry))
            if not self._router.count:
                self._await_instance()
        self.wake()

    def executed(self, instance: Instance, message: bytes) -> None:
        """An instance has answered."""
        if instance.late and self._is_late(instance, message):
            return
        running, instance.running = instance.running, None
        if running is None:
            _log.error("%s answered a batch that it was not given", instance.name)
            return
        finished_ns = _now_ns()
        # Before the answers are told: meanwhile the instance can work.
        self._router.release(instance)
        self._dispatch(finished_ns)
        if running.batch.traced:
            end_attempts(instance, running, finished_ns)
        try:
            reply = running.read(message)
        except Exception:
            _log.exception("the answer of instance %s makes no sense", instance.name)
            self._fail_open(running.batch.entries, _senseless(), finished_ns)
        else:
            self._response_batch(instance, running, reply, finished_ns)
        if not instance.at_work:
            instance.on_idle()

    def _is_late(self, instance: Instance, message: bytes) -> bool:
        try:
            return self._late.take(instance, message)
        except Exception:
            _log.exception("the late answer of instance %s makes no sense", instance.name)
            self._fail_open(lose(instance), _senseless(), _now_ns())
            return True

    # ---- the end

    def fail_all(self, error: NereidError) -> None:
        """Answer everything that is still here with this error."""
        now_ns = _now_ns()
        for entry in list(self._open):
            # One that led others may have taken them along.
            if entry.state is not State.RESPONDED:
                self._batcher.remove(entry)
                self._fail(entry, error, now_ns)

    async def idle(self) -> None:
        """Wait until everything accepted is answered."""
        while self._open:
            self._idle = self._idle or self._loop.create_future()
            await asyncio.shield(self._idle)

    def close(self) -> None:
        """Let go of the event loop; call when nothing is open."""
        self._patience.end()
        self._alarm.cancel()

    # ---- dispatch

    def wake(self) -> None:
        """Decide anew at the end of this loop turn."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        now_ns = _now_ns()
        for entry, error in self._batcher.expire(now_ns):
            # Given up by its queue's policy, or by its client's deadline.
            reason = REJECTED if isinstance(error, Unavailable) else CANCELED
            self._fail(entry, error, now_ns, reason)
        self._dispatch(now_ns)

    def _dispatch(self, now_ns: int) -> None:
        """Give each free instance the batch it shall run now, and note when to look again."""
        batcher, router = self._batcher, self._router
        if batcher.pending:
            count = router.count
            while router.free:
                batch = batcher.take(now_ns, count)
                if batch is None:
                    break
                self._start(batch, now_ns)
            else:
                if count:
                    batcher.poll(now_ns, count)
        self._alarm.set(batcher.wake_at_ns(now_ns), now_ns)

    def _start(self, batch: Batch, now_ns: int) -> Instance:
        instance = self._router.take()
        assert instance is not None, "a batch was taken for an instance that is not free"
        self.statistics.batches_closed[batch.reason] += 1
        try:
            instance.execute(batch, now_ns)
        except Exception:
            _log.exception("a batch of %r cannot be sent", self)
            self._router.release(instance)
            error = Internal("the batch cannot be sent to an executor", accepted=True)
            # Later: who submits one of them right now does not know yet that it is under way.
            self._loop.call_soon(self._fail_open, batch.entries, error, now_ns)
        return instance

    def _timer_fired(self) -> None:
        if not self._turn_due:
            self._turn()

    # ---- answers

    def _response_batch(
        self, instance: Instance, running: Running, reply: pb.Executed, finished_ns: int
    ) -> None:
        execution = running.execution(reply, finished_ns)
        if reply.partial:
            self._late.begin(instance, running, reply, execution)
            return
        entries = running.batch.entries
        responses = list(map(read_response, reply.responses))
        failed = [
            entry for entry, response in zip(entries, responses, strict=True) if response.error
        ]
        self.statistics.record_batch(running.batch, execution, failed)
        for entry, response in zip(entries, responses, strict=True):
            entry.execution = execution
            self._response(entry, response, running)

    def _response(self, entry: Entry, response: InferResponse, running: Running) -> None:
        if entry.state is State.RESPONDED:
            self.shared_tensors.unwanted(
                response
            )  # cancelled while it ran: there is nobody to tell
        elif entry.passage is None or self.cache is None:
            self._close(entry, response)
        else:
            entry.revision = running.revision
            inline = self.cache.takes(entry.passage, response)
            self._close(entry, self.shared_tensors.bring_in(response) if inline else response)

    def _fail_open(self, entries: Iterable[Entry], error: NereidError, now_ns: int) -> None:
        for entry in entries:
            if entry.state is not State.RESPONDED:
                self._fail(entry, error, now_ns)

    def _fail(self, entry: Entry, error: NereidError, now_ns: int, reason: str = OTHER) -> None:
        self.statistics.record_failure(entry, now_ns, reason)
        _log.debug("a request of %r failed: %s", self, error.message, extra=about(entry))
        self._close(entry, InferResponse(0, error=error_status_of(error)))

    def _close(self, entry: Entry, response: InferResponse | None) -> None:
        """The entry's end: its answer goes out, or, without one, it is dropped."""
        entry.state = State.RESPONDED
        del self._open[entry]
        if entry.trace is not None:
            entry.trace.end(entry, (self.name, self.number), response, _now_ns())
        if self._order is not None:
            told = None if response is None else (entry, response)
            for earlier, held in self._order.settle(entry, told):
                tell(earlier, held)
        elif response is not None:
            tell(entry, response)
        if self.cache is not None and entry.passage is not None:
            self.cache.ended(entry, response)
        if self._idle is not None and not self._open:
            self._idle.set_result(None)
            self._idle = None

    # ---- no instance anywhere

    def _await_instance(self) -> None:
        """Requests wait for an instance, but not for ever."""
        self._patience.begin()

    def _forsake(self, entry: Entry) -> None:
        """It has waited long enough for an instance."""
        if entry.state is State.RESPONDED:
            return
        self._batcher.remove(entry)
        text = (
            f"no executor has model '{self.name}' version {self.number}; waited"
            f" {self._limits.no_executor_timeout_s:g} s for one"
        )
        self._fail(entry, Unavailable(text, accepted=True), _now_ns())


def _senseless() -> Internal:
    return Internal("the executor's answer cannot be understood", accepted=True)
