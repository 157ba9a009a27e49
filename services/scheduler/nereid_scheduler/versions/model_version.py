"""A version of a model: it accepts requests, queues them, and lets a dispatcher execute them.

    submit, cancel   a request comes, or its client leaves
    step             expire what waited too long; the dispatcher executes what it can
    requests         the requests without their last response, and how they end

All code runs in one event loop and never awaits while it handles a request.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from nereid.core.errors import DeadlineExceeded, NereidError, Unavailable, Unimplemented
from nereid.core.sequence_owners import sequence_key
from nereid.core.wire.messages import (
    DECOUPLED,
    NO_CAPACITY_FOR_COPY,
    InferResponse,
    moved_response,
)
from nereid.observability.metrics import CANCELED, REJECTED
from nereid_scheduler.core.requests.entry import CACHE_LOOKUP, QUEUED, RESPONDED, Entry
from nereid_scheduler.core.requests.sequence import sequence_flags
from nereid_scheduler.versions.caching.response_cache import ResponseCache
from nereid_scheduler.versions.instance_pool import InstancePool
from nereid_scheduler.versions.open_requests import OpenRequests
from nereid_scheduler.versions.sequence_places import SequencePlaces
from nereid_scheduler.versions.steps import Stepper, Turns
from nereid_scheduler.versions.validation.request_validation import Validator

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nereid.core.wire.messages import InferRequest, SequencePlace
    from nereid.model_config import ModelConfig
    from nereid_scheduler.versions.dispatcher import Dispatcher
    from nereid_scheduler.versions.version_context import VersionContext

    OnResponse = Callable[[InferResponse], None]
    MakeDispatcher = Callable[[ModelConfig, VersionContext, OpenRequests, Turns], Dispatcher]

_now_ns: Final = time.monotonic_ns


class ModelVersion(Stepper):
    """One version of a model or ensemble."""

    def __init__(
        self,
        config: ModelConfig,
        number: int,
        context: VersionContext,
        make_dispatcher: MakeDispatcher = InstancePool,
    ) -> None:
        self.config = config
        self.number = number
        self.name = config.name
        self.requests = OpenRequests(config, number, context)
        self.records = self.requests.records
        self.statistics = self.records.statistics
        self._turns = Turns(self, context.steps)
        self.dispatcher: Dispatcher = make_dispatcher(config, context, self.requests, self._turns)
        # True for an ensemble, which has no instances.
        self.calls_other_models = self.dispatcher.calls_other_models
        self._batcher = self.dispatcher.batcher
        self._validator = Validator(config)
        # `None` while no sequence is counted.
        self._sequence_places: SequencePlaces | None = None
        # Copies that were queued, some of which may have begun since.
        self._copies: list[Entry] = []
        # True if another scheduler has the model: entries return to their gateways.
        self._given_away = False
        self.cache: ResponseCache | None = None
        if config.response_cache and context.cache is not None:
            self.cache = ResponseCache(self, context.cache, context.limits.max_queue_size)

    def __repr__(self) -> str:
        return repr(self.requests)

    def set_config(self, config: ModelConfig) -> None:
        """Set a configuration that differs in instance groups, or in whether it is decoupled."""
        self.config = config
        self.dispatcher.set_config(config)

    @property
    def pool(self) -> InstancePool:
        """The version's instances; only a version of a model has them."""
        assert isinstance(self.dispatcher, InstancePool), "an ensemble has no instances"
        return self.dispatcher

    @property
    def decoupled(self) -> bool:
        """True if a request may have any number of responses."""
        return self.config.decoupled

    @property
    def revision(self) -> bytes:
        """Revision of the version's files, or of the models of an ensemble's steps."""
        return self.requests.revision

    @property
    def in_use(self) -> bool:
        """True if the version has open requests, or sequences that are not over."""
        return bool(self.requests.entries) or any(self.dispatcher.sequences or ())

    def has_sequence(self, key: Hashable) -> bool:
        """Return whether a sequence accepts requests. key: as `sequence_key` returns it."""
        return self.dispatcher.has_sequence(key)

    def set_revision(self, revision: bytes) -> None:
        """Set the revision of the version's files, or of the models of an ensemble's steps."""
        self.requests.set_revision(revision)
        if self.cache is not None:
            # A request of a decoupled model may have several responses, so none is cached.
            self.cache.set_revision(self.number, None if self.config.decoupled else revision)

    # ---- a request comes

    def submit(
        self,
        request: InferRequest,
        on_response: OnResponse,
    ) -> Entry:
        """Accept a request. `on_response` is never called before this method has returned.

        Raises NereidError if it is refused; `on_response` is then never called.
        """
        if self.config.decoupled:
            self.check_client(request)
        now_ns = _now_ns()
        if request.is_shadow:
            self._check_capacity_for_copy(request)
        else:
            if self._copies:
                self._drop_queued_copies()
            if request.wants_sequence_place or self._sequence_places is not None:
                on_response = self._with_place(request, on_response)
        entry = self._validator.make_entry(request, on_response, self, now_ns)
        if request.trace_context:
            self.records.begin_trace(entry)
        if entry.deadline_ns is not None and entry.deadline_ns <= now_ns:
            raise DeadlineExceeded("the deadline passed before the request arrived", accepted=True)
        requests = self.requests
        try:
            # Copies test the model, so that none is answered by the cache, or changes it.
            if self.cache is None or request.is_shadow:
                self._batcher.enqueue(entry, now_ns)
            else:
                self.cache.submit_entry(entry, now_ns)
        except Unavailable as error:
            error.retry_after_ms = requests.retry_after_ms(now_ns)
            self.records.refuse(entry, error, now_ns)
            raise
        requests.add_entry(entry)
        if request.is_shadow:
            self._copies.append(entry)
        self.dispatcher.on_queued()
        return entry

    def _with_place(self, request: InferRequest, on_response: OnResponse) -> OnResponse:
        """Count a request in its sequence; return what adds its place to its last response."""
        places = SequencePlaces() if self._sequence_places is None else self._sequence_places
        place = places.count(request)
        self._sequence_places = places or None
        if place is None or not request.wants_sequence_place:
            return on_response
        return partial(_add_place, place, on_response)

    def _check_capacity_for_copy(self, request: InferRequest) -> None:
        """Raise Unavailable unless a copy can run at once and leaves an instance free.

        A single instance executes copies while nothing else waits. An ensemble's steps check this
        for themselves.
        """
        self._copies = [entry for entry in self._copies if entry.state is QUEUED]
        ready, free = self.dispatcher.instances
        if self.calls_other_models:
            has_capacity = not self._batcher.pending
        else:
            has_capacity = not self.dispatcher.pending and free >= min(2, max(1, ready))
        if not has_capacity or request.resent or self._has_lost_sequence(request):
            raise Unavailable(NO_CAPACITY_FOR_COPY.message, accepted=True)

    def _has_lost_sequence(self, request: InferRequest) -> bool:
        """Return whether a copy goes on with a sequence that has made way for another one."""
        if self.config.sequences is None or self.config.sequences.iterative:
            return False
        flags = sequence_flags(request.parameters)
        key = sequence_key(flags.id, request.sequence_owner)
        return bool(flags.id) and not flags.start and not self.dispatcher.has_sequence(key)

    def end_copied_sequence(self, request: InferRequest) -> None:
        """End the sequence of a copy, since its gateway sends no further one."""
        flags = sequence_flags(request.parameters)
        self.dispatcher.end_sequence(sequence_key(flags.id, request.sequence_owner))

    def _drop_queued_copies(self) -> None:
        """Drop the copies that have not begun, because another request has come."""
        copies, self._copies = self._copies, []
        for entry in copies:
            if entry.state is QUEUED and self._batcher.remove_entry(entry):
                # It is no failure of the version.
                self.requests.end_entry(entry, InferResponse(0, error=NO_CAPACITY_FOR_COPY))

    def check_client(self, request: InferRequest) -> None:
        """Raise Unimplemented if a decoupled model's client accepts one response only."""
        if self.config.decoupled and not request.accepts_many:
            raise Unimplemented(DECOUPLED, accepted=True)

    # ---- for the response cache

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raise Unavailable if the queue is full."""
        self._batcher.enqueue(entry, now_ns)
        self._turns.wake()

    def finish(self, entry: Entry, response: InferResponse) -> None:
        """Respond to an entry that was not queued."""
        self.requests.end_entry(entry, response)

    def fail(self, entry: Entry, error: NereidError) -> None:
        """Fail an entry that no instance has."""
        self._batcher.remove_entry(entry)
        reason = REJECTED if isinstance(error, Unavailable) else CANCELED
        self.requests.fail_entry(entry, error, reason)

    # ---- for the client of an entry

    def cancel(self, entry: Entry) -> None:
        """Cancel an entry for its client. The other entries of its batch are not affected."""
        if entry.state is RESPONDED:
            return
        failure = CANCELED
        if not self._batcher.remove_entry(entry) and entry.state is not CACHE_LOOKUP:
            failure = self.dispatcher.cancel_execution(entry)
        self.requests.end_entry(entry, None, failure)
        self._turns.wake()

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """Pause the responses of a client that cannot keep up with them, or resume them."""
        self.dispatcher.set_flow(entry, paused=paused)

    def is_blocked(self, entry: Entry) -> bool:
        """Return whether an entry waits for an executor or a slot, which may never come."""
        return self.dispatcher.is_blocked(entry)

    # ---- steps

    def wake(self) -> None:
        """Take a step at the end of this turn of the event loop."""
        self._turns.wake()

    def take_step(self, now_ns: int) -> int | None:
        """Execute the requests that can run; return when the next step is due."""
        if self._given_away:
            self.return_queued()
        return self.dispatcher.dispatch(now_ns)

    def expire(self, now_ns: int) -> None:
        """Fail the requests that have waited too long in the queue."""
        for entry, error in self._batcher.expire_entries(now_ns):
            reason = CANCELED  # the client's deadline has passed
            if isinstance(error, Unavailable):
                reason = REJECTED  # the queue's policy has expired it
                error.retry_after_ms = self.requests.retry_after_ms(now_ns)
            self.requests.fail_entry(entry, error, reason)

    # ---- the end

    def fail_all(self, error: NereidError) -> None:
        """Fail every open entry."""
        for entry in list(self.requests.entries):
            # A failed entry also fails identical requests that follow it in the response cache.
            if entry.state is not RESPONDED:
                self._batcher.remove_entry(entry)
                self.requests.fail_entry(entry, error)

    def return_queued(self) -> None:
        """Return entries that have not begun to their gateways, now and from now on."""
        self._given_away = True
        for entry in list(self.requests.entries):
            self.return_entry(entry, moved_response(entry.request.id))

    def return_entry(self, entry: Entry, response: InferResponse) -> None:
        """End an entry with this response if it has not begun; otherwise do nothing."""
        if entry.state is RESPONDED or entry.has_begun:
            return
        self._batcher.remove_entry(entry)
        if entry.cache_lookup is not None:
            # The lookup ends as if it were cancelled: identical requests are returned one by one.
            entry.cache_lookup.cache.end_entry(entry, None)
        self.requests.end_entry(entry, response)

    async def idle(self) -> None:
        """Wait until no entry is open."""
        await self.requests.idle()

    def close(self) -> None:
        """Cancel the timers. Call this when no entry is open."""
        self._turns.close()
        self.dispatcher.close()


def _add_place(place: SequencePlace, on_response: OnResponse, response: InferResponse) -> None:
    if not response.more:
        response.sequence_place = place
    on_response(response)
