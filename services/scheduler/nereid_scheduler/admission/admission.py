"""Admission: finds the model version that serves a gateway's request.

A request is submitted, refused, held during its model's first load, returned as moved, or waits for
the response of its first run. On the hot path the model is found by the bytes of the head.
"""

# layout: compiled

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import DecodeError

from nereid.bounded_cache import BoundedCache
from nereid.config.recovery import DEFAULT_TIMES
from nereid.core.errors import (
    STOPPING_MESSAGE,
    Internal,
    MovedError,
    NereidError,
    error_from_code,
)
from nereid.core.retry_after import DEFAULT_MS
from nereid.core.wire.messages import MOVED, InferResponse
from nereid.observability.tracing import is_sampled
from nereid.pb import kserve_pb2
from nereid.timeline.records import LOADING, Wait
from nereid_scheduler.admission.orphaned_requests import OrphanedRequests
from nereid_scheduler.admission.refusals import client_error, refusal_response
from nereid_scheduler.control.shards.model_moves import NO_MOVES
from nereid_scheduler.core.measurements.timeline import NO_TIMELINE
from nereid_scheduler.core.requests.entry import identify_response
from nereid_scheduler.core.requests.entry_trace import NO_TRACES, RefusedRequest
from nereid_scheduler.core.requests.load_queue import HeldRequest, LoadQueue
from nereid_scheduler.placement.models.catalogue import parse_version
from nereid_scheduler.versions.reruns.first_runs import NO_FIRST_RUNS
from nereid_scheduler.versions.reruns.resent_requests import ResentRequest, may_have_run
from nereid_scheduler.versions.waits.nested_calls import NO_NESTED_CALLS

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.messages import InferRequest
    from nereid_scheduler.core.measurements.timeline import SchedulerTimeline
    from nereid_scheduler.core.requests.entry import Entry, PendingRequest
    from nereid_scheduler.core.requests.entry_trace import Traces
    from nereid_scheduler.core.requests.load_queue import OnQueued, OnResponse
    from nereid_scheduler.placement.models.catalogue import Catalogue
    from nereid_scheduler.versions.queued_requests import QueuedRequests
    from nereid_scheduler.versions.reruns.first_runs import FirstRuns
    from nereid_scheduler.versions.waits.nested_calls import NestedCalls

_log = logging.getLogger(__name__)

_MAX_HEADS: Final = 4096
_MAX_HEAD_BYTES: Final = 4096


class LinkSession(Protocol):
    """Interface for the session of a gateway's link; admission may have to end it."""

    def has_pending(self, request_id: int) -> bool:
        """Return whether a request of this gateway has no last response yet."""

    def on_down(self) -> None:
        """End the session."""


class Admission:
    """Find the model version of each request, and submit, hold or refuse the request."""

    def __init__(  # noqa: PLR0913 (most by keyword)
        self,
        catalogue: Catalogue,
        load_queue: LoadQueue,
        traces: Traces = NO_TRACES,
        nested_calls: NestedCalls = NO_NESTED_CALLS,
        *,
        first_runs: FirstRuns = NO_FIRST_RUNS,
        has_moved: Callable[[str], bool] = NO_MOVES.has_moved,
        loads: Callable[[str, int], bool] | None = None,
        max_heads: int = _MAX_HEADS,
        orphan_limit_s: float = DEFAULT_TIMES.orphan_s,
        timeline: SchedulerTimeline = NO_TIMELINE,
    ) -> None:
        """Create an Admission without sessions.

        has_moved: returns whether another scheduler has a model. loads: begins a load of a model
        and version (or -1) if necessary, and returns whether a request can wait for it.
        orphan_limit_s: how long a request goes on while its gateway is disconnected.
        """
        self._timeline = timeline
        self._loads = loads
        self._has_moved = has_moved
        self._catalogue = catalogue
        self._load_queue = load_queue
        self._traces = traces
        self._nested_calls = nested_calls
        self._first_runs = first_runs
        self.sessions: dict[LinkSession, None] = {}
        # Requests that were executing when the link to their gateway was lost.
        self.orphans = OrphanedRequests(orphan_limit_s)
        self._by_head = BoundedCache[bytes, "QueuedRequests"](max_heads, _MAX_HEAD_BYTES)
        self._stopping = False
        self._retry_due = False

    def submit(
        self,
        request: InferRequest,
        on_response: OnResponse,
        on_queued: OnQueued,
        *,
        at_once: bool,
    ) -> PendingRequest:
        """Submit a request to its model. `on_response` is called after this method has returned.

        on_queued: gets the id and a PendingRequest that replaces the returned one, for example
        after a hold. Raises NereidError if the request is refused; `on_response` is then never
        called.
        """
        model = self._by_head.get(request.head)
        if model is None or request.resent or request.error_status is not None:
            if request.resent and request.error_status is None:
                pending = self._await_first_run(request, on_response, on_queued)
                if pending is not None:
                    return pending
            return self._submit_slowly(request, on_response, on_queued)
        if request.caller:
            self._nested_calls.set_depth(request)
            return self._submit_to(model, request, on_response)
        return model.submit(request, on_response, at_once=at_once)

    def trace_refusal(self, request: InferRequest, error: NereidError, since_ns: int = 0) -> None:
        """Record a trace of a request that no model accepted. since_ns: arrival; 0 means now."""
        if not is_sampled(request.trace_context):
            return
        if isinstance(error, MovedError):
            return  # the request is returned to its gateway, and has no outcome yet
        try:
            name, version = _model_and_version(request.head)
        except NereidError:
            return  # the model's name is in the head, and a span needs one
        since_ns = since_ns or time.monotonic_ns()
        self._traces.refused(RefusedRequest(request, name, version, since_ns, error.message))

    def end_older_link(self, request_id: int, newer: LinkSession) -> None:
        """End an older link of a gateway that has sent this request again over a newer link."""
        for session in list(self.sessions):
            if session is not newer and session.has_pending(request_id):
                session.on_down()

    def stop(self) -> None:
        """Return held requests to their gateways now, and new requests when they come.

        Models' requests are still submitted, as each serves an accepted request.
        """
        self._stopping = True
        for held in self._load_queue:
            if not held.request.caller:
                self._load_queue.remove_request(held)
                held.on_response(stopping_response(held.request))
        self._by_head.clear()
        self._first_runs.end_waits()

    def models_changed(self) -> None:
        """Forget remembered models and retry held requests, after a version's state has changed."""
        self._by_head.clear()
        if len(self._load_queue) and not self._retry_due:
            self._retry_due = True
            asyncio.get_running_loop().call_soon(self._retry_held)

    def _submit_slowly(
        self, request: InferRequest, on_response: OnResponse, on_queued: OnQueued
    ) -> PendingRequest:
        if request.caller:
            self._nested_calls.set_depth(request)
        name, version = _model_and_version(request.head)
        if self._stopping and not request.caller:
            # Another scheduler owns the model, or will when this one has ended.
            self._check_moved(name)
            raise _stopping()
        try:
            model = self._find_model(request, name, version)
        except NereidError:
            if not (self._catalogue.is_loading(name, version) or self._begin_load(name, version)):
                self._check_moved(name)
                raise
            held = HeldRequest(
                request,
                name,
                version,
                on_response,
                on_queued,
                on_failed=self._on_hold_failed,
                since_ns=time.monotonic_ns(),
                queue=self._load_queue,
            )
            self._load_queue.hold_request(held)
            return held
        return self._submit_to(model, request, on_response)

    def _await_first_run(
        self, request: InferRequest, on_response: OnResponse, on_queued: OnQueued
    ) -> PendingRequest | None:
        """Let a resent request wait for its first run; raise Aborted if it must not run again."""
        orphan = self.orphans.claim(request.id, on_response)
        if orphan is not None:
            return orphan
        name, version = _model_and_version(request.head)
        self._check_moved(name)
        refusal = None
        if self._catalogue.runs_at_most_once(name, version):
            refusal = may_have_run(name, "the connection to an executor or a scheduler was lost")

        def on_unknown() -> None:
            # If this scheduler stops, the next one may find the first run: return the request.
            if refusal is None or (self._stopping and not request.caller):
                self._submit_later(request, on_response, on_queued)
            else:
                self._refuse_later(request, refusal, on_response)

        resent = ResentRequest(request, self._first_runs, on_response, on_unknown)
        if resent.wait(self._catalogue.run_ids(name, version, request.id)):
            return resent
        if refusal is not None:
            raise refusal
        return None

    def _submit_later(
        self, request: InferRequest, on_response: OnResponse, on_queued: OnQueued
    ) -> None:
        """Submit a request that has waited; replace its PendingRequest in the gateway's session."""
        try:
            on_queued(request.id, self._submit_slowly(request, on_response, on_queued))
        except Exception as error:
            self._refuse_later(request, client_error(error, request), on_response)

    def _refuse_later(
        self, request: InferRequest, refusal: NereidError, on_response: OnResponse
    ) -> None:
        self.trace_refusal(request, refusal)
        response = refusal_response(request, refusal)
        if refusal.accepted:
            identify_response(request, response)
        on_response(response)

    def _submit_to(
        self, model: QueuedRequests, request: InferRequest, on_response: OnResponse
    ) -> Entry:
        entry = model.submit(request, on_response)
        if request.caller:
            try:
                self._nested_calls.add_call(request, entry)
            except NereidError:
                entry.cancel()
                raise
        return entry

    def _begin_load(self, name: str, version: str) -> bool:
        return self._loads is not None and self._loads(name, parse_version(version))

    def _check_moved(self, name: str) -> None:
        if self._has_moved(name):
            raise MovedError(MOVED.message)

    def _find_model(self, request: InferRequest, name: str, version: str) -> QueuedRequests:
        model = self._catalogue.find(name, version).runtime
        assert model is not None, "ready, but not in service"
        if request.error_status is not None:
            model.check_client(request)
            code, message, accepted, _, after_ms = request.error_status
            raise error_from_code(code, message, accepted=accepted, retry_after_ms=after_ms)
        if not self._stopping:
            self._by_head.remember(request.head, model)
        return model

    def _retry_held(self) -> None:
        self._retry_due = False
        # From now on, the time counts as time in the model's queue.
        now_ns = time.monotonic_ns()
        released: dict[tuple[str, str], list[HeldRequest]] = {}
        for held in self._load_queue:
            if not self._catalogue.is_loading(held.name, held.version):
                self._load_queue.remove_request(held)
                released.setdefault(self._submit_held(held), []).append(held)
        for named, waited in released.items():
            self._record_hold(named, waited, now_ns)

    def _on_hold_failed(self, held: HeldRequest, error: NereidError) -> None:
        self.trace_refusal(held.request, error, held.since_ns)
        self._record_hold((held.name, held.version), [held], time.monotonic_ns())

    def _record_hold(self, named: tuple[str, str], waited: list[HeldRequest], now_ns: int) -> None:
        """Record in the timeline that requests have waited for a load. The first waited longest."""
        wait = Wait(*named, LOADING, waited[0].since_ns, now_ns, len(waited))
        self._timeline.record_wait(wait)

    def _submit_held(self, held: HeldRequest) -> tuple[str, str]:
        """Submit a held request; return the name and version of its model, if found, or its own."""
        named = held.name, held.version
        request, on_response, on_queued = held.request, held.on_response, held.on_queued
        try:
            if request.resent:
                # An executor that knows of a first run may have joined while the request was held.
                resent = self._await_first_run(request, on_response, on_queued)
                if resent is not None:
                    on_queued(request.id, resent)
                    return named
            self._check_moved(held.name)
            model = self._find_model(request, held.name, held.version)
            name, number = model.named
            named = name, str(number)
            on_queued(request.id, self._submit_to(model, request, on_response))
        except Exception as error:
            refusal = client_error(error, request)
            self.trace_refusal(request, refusal, held.since_ns)
            on_response(refusal_response(request, refusal))
        return named


def _stopping() -> MovedError:
    return MovedError(STOPPING_MESSAGE, retry_after_ms=DEFAULT_MS)


def stopping_response(request: InferRequest) -> InferResponse:
    """Return a response after which the gateway sends the request to the next scheduler."""
    return refusal_response(request, _stopping())


def _model_and_version(head: bytes) -> tuple[str, str]:
    try:
        message = kserve_pb2.ModelInferRequest.FromString(head)
    except DecodeError as error:
        raise Internal("a request's head is damaged") from error
    return message.model_name, message.model_version
