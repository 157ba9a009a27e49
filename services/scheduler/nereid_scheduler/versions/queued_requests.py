"""Base class of versions: it accepts, queues, expires and ends the requests of one version.

Every entry gets exactly one last response. All code runs in one event loop and never awaits while
it handles a request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from nereid.core.errors import Cancelled, DeadlineExceeded, NereidError, Unavailable, Unimplemented
from nereid.core.wire.messages import DECOUPLED, InferResponse, error_status_of, moved_response
from nereid.observability.metrics import CANCELED, OTHER, REJECTED
from nereid_scheduler.core.measurements.statistics import ModelStatistics
from nereid_scheduler.core.requests.entry import (
    RESPONDED,
    Entry,
    RequestState,
    about,
)
from nereid_scheduler.core.requests.request_timings import queue_delay_ns, timings_of
from nereid_scheduler.core.requests.response_order import ResponseOrder
from nereid_scheduler.core.timer import RearmableTimer
from nereid_scheduler.versions.caching.response_cache import ResponseCache
from nereid_scheduler.versions.validation.request_validation import Validator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.core.wire.messages import InferRequest, RequestTimings
    from nereid.model_config import ModelConfig
    from nereid_scheduler.batching.batcher import Batcher, LatencyTarget
    from nereid_scheduler.versions.version_context import VersionContext

    OnResponse = Callable[[InferResponse], None]

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns


class QueuedRequests(ABC):
    """The requests of one version, from acceptance to the last response."""

    # True for an ensemble, which calls other models and has no instances.
    asks_others = False
    target: LatencyTarget | None = None

    def __init__(
        self, config: ModelConfig, number: int, context: VersionContext, batcher: Batcher
    ) -> None:
        self.config = config
        self.number = number
        self.name = config.name
        self.statistics = ModelStatistics(context.latencies)
        self.segment_owners = context.segment_owners
        self.revision = b""  # revision of the version's files, if there is a response cache
        self.limits = context.limits
        self._batcher = batcher
        self._traces = context.traces
        self.timeline = context.timeline
        # As timelines show the version.
        self.named = config.name, number
        self._validator = Validator(config)
        batching = config.batching if config.sequences is None else config.sequences.oldest
        keeps_order = batching is not None and batching.preserve_ordering
        self._order = ResponseOrder[tuple[Entry, InferResponse]]() if keeps_order else None
        # Entries without their last response, in order of arrival.
        self._open: dict[Entry, None] = {}
        # Called when an entry has its last response or is cancelled.
        self._on_end: list[Callable[[Entry], None]] = []
        # True if another scheduler has the model: entries return to their gateways.
        self._given_away = False
        self._idle: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._turn_due = False
        self._timer = RearmableTimer(self._on_timer)
        self.cache: ResponseCache | None = None
        if config.response_cache and context.cache is not None:
            self.cache = ResponseCache(self, context.cache, context.limits.max_queue_size)

    def __repr__(self) -> str:
        return f"'{self.name}' version {self.number}"

    @property
    def decoupled(self) -> bool:
        """True if a request may have any number of responses."""
        return self.config.decoupled

    @property
    def pending(self) -> int:
        """Number of requests that wait for an instance."""
        return self._batcher.pending

    @property
    def in_use(self) -> bool:
        """True if the version has open requests, or sequences that are not over."""
        return bool(self._open) or any(self.sequences or ())

    @property
    def instances(self) -> tuple[int, int]:
        """Number of ready instances, and how many of these are free."""
        return 0, 0

    @property
    def sequences(self) -> tuple[int, int] | None:
        """Number of live sequences, and how many wait for a slot; `None` without sequences."""
        return None

    def set_revision(self, revision: bytes) -> None:
        """Set the revision of the version's files, or of the models of an ensemble's steps."""
        self.revision = revision
        if self.cache is not None:
            # A request of a decoupled model may have several responses, so none is cached.
            self.cache.set_revision(self.number, None if self.config.decoupled else revision)

    @abstractmethod
    def _dispatch(self, now_ns: int) -> None:
        """Execute the requests that can run now, and arm the timer for the next dispatch."""

    @abstractmethod
    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """Pause the responses of a client that cannot keep up with them, or resume them."""

    def submit(
        self,
        request: InferRequest,
        on_response: OnResponse,
        *,
        at_once: bool = False,
    ) -> Entry:
        """Accept a request. `on_response` is never called before this method has returned.

        at_once: no other request comes with this one, so it need not wait for the end of the turn.
        Raises NereidError if it is refused; `on_response` is then never called.
        """
        if self.config.decoupled:
            self.check_client(request)
        now_ns = _now_ns()
        entry = self._validator.make_entry(request, on_response, self, now_ns)
        if request.trace_context:
            entry.trace = self._traces.begin(request, now_ns)
        if entry.deadline_ns is not None and entry.deadline_ns <= now_ns:
            raise DeadlineExceeded("the deadline passed before the request arrived", accepted=True)
        if at_once and self._start_alone(entry, now_ns):
            return entry
        try:
            if self.cache is None:
                self._batcher.enqueue(entry, now_ns)
            else:
                self.cache.submit_entry(entry, now_ns)
        except Unavailable as error:
            error.retry_after_ms = self.statistics.record_refusal(len(self._open), now_ns)
            self.timeline.record_ended(self.named, entry, now_ns, error.message, error.code)
            raise
        self._open[entry] = None
        if self._order is not None:
            self._order.append_request(entry)
        self._on_queued(now_ns, at_once=at_once)
        return entry

    def _start_alone(self, entry: Entry, now_ns: int) -> bool:  # noqa: ARG002 - of versions with instances
        """Execute an entry alone, if nothing waits and an instance is free; return False if not."""
        return False

    def _on_queued(self, now_ns: int, *, at_once: bool) -> None:  # noqa: ARG002 - of versions with instances
        self.wake()

    def check_client(self, request: InferRequest) -> None:
        """Raise Unimplemented if a decoupled model's client accepts one response only."""
        if self.config.decoupled and not request.accepts_many:
            raise Unimplemented(DECOUPLED, accepted=True)

    def cancel(self, entry: Entry) -> None:
        """Cancel an entry for its client. The other entries of its batch are not affected."""
        if entry.state is RESPONDED:
            return
        if self._batcher.remove_entry(entry) or entry.state is RequestState.CACHE_LOOKUP:
            self.statistics.record_failure(entry, _now_ns(), CANCELED)
        else:
            self._cancel_execution(entry)
        self.end_entry(entry, None)
        self.wake()

    @abstractmethod
    def _cancel_execution(self, entry: Entry) -> None:
        """Handle the cancellation of an entry that has left the queue."""

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raise Unavailable if the queue is full."""
        self._batcher.enqueue(entry, now_ns)
        self.wake()

    def finish(self, entry: Entry, response: InferResponse) -> None:
        """Respond to an entry that was not queued."""
        self.end_entry(entry, response)

    def fail(self, entry: Entry, error: NereidError, now_ns: int) -> None:
        """Fail an entry that no instance has."""
        self._batcher.remove_entry(entry)
        reason = REJECTED if isinstance(error, Unavailable) else CANCELED
        self.fail_entry(entry, error, now_ns, reason)

    def respond(self, entry: Entry, response: InferResponse, revision: bytes) -> None:
        """Send an entry's last response, unless it has ended. revision: of the model's files."""
        if entry.state is RESPONDED:
            self.segment_owners.drop_response(response)  # cancelled while it ran
        elif entry.cache_lookup is None or self.cache is None:
            self.end_entry(entry, response)
        else:
            entry.revision = revision
            inline = self.cache.needs_inline(entry.cache_lookup, response)
            self.end_entry(
                entry, self.segment_owners.inline_response(response) if inline else response
            )

    def respond_partially(self, entry: Entry, response: InferResponse) -> None:
        """Send a response that is not the entry's last."""
        if self._order is None:
            entry.respond(response)
        else:
            for responding, held in self._order.order_response(entry, (entry, response)):
                responding.respond(held)

    def end_entry(self, entry: Entry, response: InferResponse | None) -> None:
        """Send an entry's last response; `None` means that it was cancelled."""
        if entry.request.wants_timings and response is not None:
            response.timings = self._timings_of(entry, response)
        entry.state = RESPONDED
        del self._open[entry]
        if entry.execution is None:
            self._record_ended(entry, response)
        for on_end in self._on_end:
            on_end(entry)
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

    def _record_ended(self, entry: Entry, response: InferResponse | None) -> None:
        outcome, status = "ensemble" if self.asks_others else "cache hit", 0
        if response is None:
            outcome, status = "cancelled", Cancelled.code
        elif response.error is not None:
            outcome, status = response.error.message, response.error.code
        self.timeline.record_ended(self.named, entry, _now_ns(), outcome, status)

    def _timings_of(self, entry: Entry, response: InferResponse) -> RequestTimings:
        failed = response.error is not None
        return timings_of(entry, queue_delay_ns(self.config), _now_ns(), failed=failed)

    def fail_entry(
        self, entry: Entry, error: NereidError, now_ns: int, reason: str = OTHER
    ) -> None:
        """Send an error as the last response of an entry that is in no queue."""
        self.statistics.record_failure(entry, now_ns, reason)
        _log.debug("a request of %r failed: %s", self, error.message, extra=about(entry))
        self.end_entry(entry, InferResponse(0, error=error_status_of(error)))

    def fail_entries(self, entries: Iterable[Entry], error: NereidError, now_ns: int) -> None:
        """Fail each of these entries, unless it has its last response."""
        for entry in entries:
            if entry.state is not RESPONDED:
                self.fail_entry(entry, error, now_ns)

    def fail_all(self, error: NereidError) -> None:
        """Fail every open entry."""
        now_ns = _now_ns()
        for entry in list(self._open):
            # A failed entry also fails identical requests that follow it in the response cache.
            if entry.state is not RESPONDED:
                self._batcher.remove_entry(entry)
                self.fail_entry(entry, error, now_ns)

    def return_queued(self) -> None:
        """Return entries that have not begun to their gateways, now and from now on."""
        self._given_away = True
        for entry in list(self._open):
            self.return_entry(entry, moved_response(entry.request.id))

    def return_entry(self, entry: Entry, response: InferResponse) -> None:
        """End an entry with this response if it has not begun; otherwise do nothing."""
        if entry.state is RESPONDED or entry.has_begun:
            return
        self._batcher.remove_entry(entry)
        if self.cache is not None and entry.cache_lookup is not None:
            # The lookup ends as if it were cancelled: identical requests are returned one by one.
            self.cache.end_entry(entry, None)
        self.end_entry(entry, response)

    def is_blocked(self, entry: Entry) -> bool:  # noqa: ARG002 - of versions with instances
        """Return whether an entry waits for an executor or a slot, which may never come."""
        return False

    async def idle(self) -> None:
        """Wait until no entry is open."""
        while self._open:
            self._idle = self._idle or self._loop.create_future()
            await asyncio.shield(self._idle)

    def close(self) -> None:
        """Cancel the timers. Call this when no entry is open."""
        self._timer.cancel()

    def wake(self) -> None:
        """Dispatch at the end of this turn of the event loop."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        now_ns = _now_ns()
        self._expire_entries(now_ns)
        self._dispatch(now_ns)

    def _on_timer(self) -> None:
        if not self._turn_due:
            self._turn()

    def _expire_entries(self, now_ns: int) -> None:
        for entry, error in self._batcher.expire_entries(now_ns):
            reason = CANCELED  # the client's deadline has passed
            if isinstance(error, Unavailable):
                reason = REJECTED  # the queue's policy has expired it
                error.retry_after_ms = self.statistics.foresee_drain(len(self._open), now_ns)
            self.fail_entry(entry, error, now_ns, reason)
