"""Admission: finds the model version that serves a gateway's request.

A request is submitted, refused, held during its model's first load, returned as moved, or waits for
the response of its first run. On the hot path the model is found by the bytes of the head.
"""

# layout: compiled

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nereid.bounded_cache import BoundedCache
from nereid.config.recovery import DEFAULT_TIMES
from nereid.core.errors import (
    STOPPING_MESSAGE,
    MovedError,
    NereidError,
    Unavailable,
    error_from_code,
)
from nereid.core.retry_after import DEFAULT_MS
from nereid.core.wire.messages import MOVED, InferResponse
from nereid.observability.tracing import is_sampled
from nereid.timeline.records import LOADING, Wait
from nereid_scheduler.admission.call_rights import CallRights
from nereid_scheduler.admission.orphaned_requests import OrphanedRequests
from nereid_scheduler.admission.refusals import client_error, refusal_response
from nereid_scheduler.admission.request_names import model_and_version
from nereid_scheduler.core.measurements.timeline import NO_TIMELINE
from nereid_scheduler.core.models.lifecycle import VersionState
from nereid_scheduler.core.models.model_owners import ONE_OWNER
from nereid_scheduler.core.requests.entry import identify_response
from nereid_scheduler.core.requests.load_queue import HeldRequest, LoadQueue
from nereid_scheduler.placement.models.catalogue import Loading, Missing, OnDemand, Ready
from nereid_scheduler.placement.models.traffic_split import find_split
from nereid_scheduler.versions.reruns.first_runs import NO_FIRST_RUNS
from nereid_scheduler.versions.reruns.resent_requests import ResentRequest, may_have_run
from nereid_scheduler.versions.steps import Steps
from nereid_scheduler.versions.tracing.traces import NO_TRACES, RefusedRequest
from nereid_scheduler.versions.waits.nested_calls import NO_NESTED_CALLS

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.messages import ErrorStatus, InferRequest
    from nereid_scheduler.core.measurements.timeline import SchedulerTimeline
    from nereid_scheduler.core.models.on_demand_models import OnDemandModel
    from nereid_scheduler.core.requests.entry import Entry, PendingRequest
    from nereid_scheduler.core.requests.load_queue import OnQueued, OnResponse
    from nereid_scheduler.placement.models.catalogue import Catalogue, Resolution, ServedVersion
    from nereid_scheduler.placement.models.traffic_split import TrafficSplit
    from nereid_scheduler.versions.model_version import ModelVersion
    from nereid_scheduler.versions.reruns.first_runs import FirstRuns
    from nereid_scheduler.versions.tracing.traces import Traces
    from nereid_scheduler.versions.waits.nested_calls import NestedCalls

_log = logging.getLogger(__name__)

_MAX_HEADS: Final = 4096
_MAX_HEAD_BYTES: Final = 4096
_OTHER_FILES: Final = "model {} was loaded again with other files while a text was read for it"


class LinkSession(Protocol):
    """Interface for the session of a gateway's link; admission may have to end it."""

    def has_pending(self, request_id: int) -> bool:
        """Return whether a request of this gateway still awaits its last response."""

    def on_down(self) -> None:
        """End the session."""


class _Arrival(NamedTuple):
    request: InferRequest
    on_response: OnResponse
    on_queued: OnQueued


class Admission:
    """Find the model version of each request, and submit, hold or refuse the request."""

    def __init__(  # noqa: PLR0913 (most by keyword)
        self,
        catalogue: Catalogue,
        load_queue: LoadQueue,
        traces: Traces = NO_TRACES,
        nested_calls: NestedCalls = NO_NESTED_CALLS,
        *,
        call_rights: CallRights | None = None,
        first_runs: FirstRuns = NO_FIRST_RUNS,
        has_moved: Callable[[str], bool] = ONE_OWNER.has_moved,
        load_on_demand: Callable[[OnDemandModel], object] = lambda _: None,
        max_heads: int = _MAX_HEADS,
        orphan_limit_s: float = DEFAULT_TIMES.orphan_s,
        timeline: SchedulerTimeline = NO_TIMELINE,
        steps: Steps | None = None,
    ) -> None:
        """Create an Admission without sessions.

        has_moved: returns whether another scheduler has a model. load_on_demand: begins a load of a
        model unless it is pending, or raises NereidError. orphan_limit_s: how long a request goes
        on while its gateway is disconnected.
        """
        self._timeline = timeline
        # Steps of the versions; sessions record their frames before.
        self.steps = steps or Steps()
        self._load_on_demand = load_on_demand
        self._has_moved = has_moved
        self._catalogue = catalogue
        self._load_queue = load_queue
        self._traces = traces
        self._nested_calls = nested_calls
        self.call_rights = call_rights or CallRights({})
        self._first_runs = first_runs
        self.sessions: dict[LinkSession, None] = {}
        # Requests that were executing when the link to their gateway was lost.
        self.orphans = OrphanedRequests(orphan_limit_s)
        # Key: a head, with the request's text_digest if it has one.
        self._by_head = BoundedCache[bytes | tuple[bytes, bytes], "ModelVersion"](
            max_heads, _MAX_HEAD_BYTES
        )
        # Key: a head without a version, of a model with weights of traffic.
        self._splits: BoundedCache[bytes, TrafficSplit]
        self._splits = BoundedCache(max_heads, _MAX_HEAD_BYTES)
        self._stopping = False
        self._retry_due = False

    def submit(
        self,
        request: InferRequest,
        on_response: OnResponse,
        on_queued: OnQueued,
    ) -> PendingRequest:
        """Submit a request to its model. `on_response` is called after this method has returned.

        on_queued: gets the id and a PendingRequest that replaces the returned one, for example
        after a hold. Raises NereidError if the request is refused; `on_response` is then never
        called.
        """
        if request.caller or request.confined_caller:
            # This comes first: while a request is held, those that it is for may end.
            self.call_rights.apply(request)
        model = self._by_head.get(_key_of(request))
        if model is None and self._splits:
            model = self._choose_model(request)
        if model is None or request.resent or request.error_status is not None:
            return self._admit(_Arrival(request, on_response, on_queued))
        if request.caller:
            self._nested_calls.set_depth(request)
            return self._submit_to(model, request, on_response)
        return model.submit(request, on_response)

    def trace_refusal(self, request: InferRequest, error: NereidError, since_ns: int = 0) -> None:
        """Record a trace of a request that no model accepted. since_ns: arrival; 0 means now."""
        if not is_sampled(request.trace_context):
            return
        if isinstance(error, MovedError):
            return  # the request is returned to its gateway, and has no outcome yet
        try:
            name, version = model_and_version(request.head)
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
        self._forget_models()
        self._first_runs.end_waits()

    def models_changed(self) -> None:
        """Forget remembered models and retry held requests.

        Call this after the state of a version, or a model's traffic, has changed.
        """
        self._forget_models()
        if len(self._load_queue) and not self._retry_due:
            self._retry_due = True
            asyncio.get_running_loop().call_soon(self._retry_held)

    def _forget_models(self) -> None:
        self._by_head.clear()
        self._splits.clear()

    def _choose_model(self, request: InferRequest) -> ModelVersion | None:
        """Return the version that a remembered model's traffic gives a request."""
        split = self._splits.get(request.head)
        if split is None:
            return None
        served = split.choose(request)
        _check_text_digest(request, served)
        return served.ready_runtime

    def _resolve(self, request: InferRequest, name: str, version: str) -> Resolution:
        """Return what serves a request. Raises NereidError as Catalogue.resolve() does."""
        found = self._catalogue.resolve(name, version)
        if version or not isinstance(found, Ready | Loading):
            return found
        split = find_split(self._catalogue, name)
        if split is None:
            return found
        served = split.choose(request)
        if served.life.state is not VersionState.READY:
            return Loading(Unavailable(f"model {served} is being loaded", accepted=True))
        if not split.waits and not self._stopping:
            self._splits.remember(request.head, split)
        return Ready(served, is_chosen=True)

    def _admit(self, arrival: _Arrival, *, runs_again: bool = False) -> PendingRequest:
        """Submit, hold or refuse a request that is new, was sent again, or was held.

        runs_again: True if the request was sent again, and has no first run.
        """
        request = arrival.request
        name, version = model_and_version(request.head)
        may_run_already = request.resent and not request.is_shadow
        if may_run_already and not runs_again and request.error_status is None:
            first_run = self._await_first_run(arrival, name, version)
            if first_run is not None:
                return first_run
        if request.caller:
            self._nested_calls.set_depth(request)
        if self._stopping and not request.caller:
            # Another scheduler owns the model, or will when this one has ended.
            self._check_moved(name)
            raise _stopping()
        found = self._resolve(request, name, version)
        if isinstance(found, Ready):
            model = found.served.ready_runtime
            _check_text_digest(request, found.served)
            if request.error_status is not None:
                raise _gateways_error(model, request, request.error_status)
            if not self._stopping and not found.is_chosen:
                self._by_head.remember(_key_of(request), model)
            return self._submit_to(model, request, arrival.on_response)
        if isinstance(found, Missing) or request.is_shadow:
            # A copy neither waits for a load nor begins one.
            self._check_moved(name)
            raise _not_found(request, found.error)
        if isinstance(found, OnDemand):
            self._load_on_demand(found.model)
        held = HeldRequest(
            request,
            name,
            version,
            arrival.on_response,
            arrival.on_queued,
            on_failed=self._on_hold_failed,
            since_ns=time.monotonic_ns(),
            queue=self._load_queue,
        )
        self._load_queue.hold_request(held)
        return held

    def _await_first_run(self, arrival: _Arrival, name: str, version: str) -> PendingRequest | None:
        """Let a resent request wait for its first run; raise Aborted if it must not run again."""
        request = arrival.request
        orphan = self.orphans.claim(request.id, arrival.on_response)
        if orphan is not None:
            return orphan
        self._check_moved(name)

        def on_unknown() -> None:
            # The model may have been taken over meanwhile; before, its configuration was unknown.
            refusal = self._rerun_refusal(name, version)
            # If this scheduler stops, the next one may find the first run: return the request.
            if refusal is None or (self._stopping and not request.caller):
                self._admit_later(arrival, runs_again=True)
            else:
                self._refuse(arrival, refusal)

        resent = ResentRequest(request, self._first_runs, arrival.on_response, on_unknown)
        if resent.wait(self._catalogue.run_ids(name, version, request.id)):
            return resent
        refusal = self._rerun_refusal(name, version)
        if refusal is not None:
            raise refusal
        return None

    def _rerun_refusal(self, name: str, version: str) -> NereidError | None:
        """Return the error for a resent request whose model runs requests at most once."""
        if not self._catalogue.runs_at_most_once(name, version):
            return None
        return may_have_run(name, "the connection to an executor or a scheduler was lost")

    def _admit_later(
        self, arrival: _Arrival, *, runs_again: bool = False, since_ns: int = 0
    ) -> None:
        """Admit a request that has waited; replace its PendingRequest in the gateway's session."""
        try:
            pending = self._admit(arrival, runs_again=runs_again)
        except Exception as error:
            self._refuse(arrival, client_error(error, arrival.request), since_ns)
        else:
            arrival.on_queued(arrival.request.id, pending)

    def _refuse(self, arrival: _Arrival, refusal: NereidError, since_ns: int = 0) -> None:
        request = arrival.request
        self.trace_refusal(request, refusal, since_ns)
        response = refusal_response(request, refusal)
        if request.resent and refusal.accepted:
            identify_response(request, response)
        arrival.on_response(response)

    def _submit_to(
        self, model: ModelVersion, request: InferRequest, on_response: OnResponse
    ) -> Entry:
        entry = model.submit(request, on_response)
        if request.caller:
            try:
                self._nested_calls.add_call(request, entry)
            except NereidError:
                entry.cancel()
                raise
        return entry

    def _check_moved(self, name: str) -> None:
        if self._has_moved(name):
            raise MovedError(MOVED.message)

    def _retry_held(self) -> None:
        self._retry_due = False
        # From now on, the time counts as time in the model's queue.
        now_ns = time.monotonic_ns()
        released: dict[tuple[str, str], list[HeldRequest]] = {}
        loading: set[tuple[str, str]] = set()
        for held in self._load_queue:
            named = held.name, held.version
            if named in loading:
                continue
            try:
                found = self._resolve(held.request, *named)
            except NereidError as error:
                found = Missing(error)
            if isinstance(found, Loading) or (isinstance(found, OnDemand) and found.is_pending):
                if self._catalogue.find_traffic(held.name) is None:
                    loading.add(named)
                continue
            if isinstance(found, Ready):
                name, number = found.served.ready_runtime.requests.named
                named = name, str(number)
            released.setdefault(named, []).append(held)
            self._load_queue.remove_request(held)
            arrival = _Arrival(held.request, held.on_response, held.on_queued)
            self._admit_later(arrival, since_ns=held.since_ns)
        for named, waited in released.items():
            self._record_hold(named, waited, now_ns)

    def _on_hold_failed(self, held: HeldRequest, error: NereidError) -> None:
        self.trace_refusal(held.request, error, held.since_ns)
        self._record_hold((held.name, held.version), [held], time.monotonic_ns())

    def _record_hold(self, named: tuple[str, str], waited: list[HeldRequest], now_ns: int) -> None:
        """Record in the timeline that requests have waited for a load. The first waited longest."""
        wait = Wait(*named, LOADING, waited[0].since_ns, now_ns, len(waited))
        self._timeline.record_wait(wait)


def _gateways_error(
    model: ModelVersion, request: InferRequest, error_status: ErrorStatus
) -> NereidError:
    """Return the error with which a gateway has refused a request. A copy's sequence ends."""
    if request.is_shadow:
        model.end_copied_sequence(request)
    model.check_client(request)
    code, message, accepted, _, after_ms = error_status
    return error_from_code(code, message, accepted=accepted, retry_after_ms=after_ms)


def _not_found(request: InferRequest, error: NereidError) -> NereidError:
    """Return the error of a request whose model is not ready."""
    if request.is_shadow and not request.caller:
        # Otherwise it would count as a response of the shadow, and differ.
        return Unavailable(error.message)
    return error


def _stopping() -> MovedError:
    return MovedError(STOPPING_MESSAGE, retry_after_ms=DEFAULT_MS)


def stopping_response(request: InferRequest) -> InferResponse:
    """Return a response after which the gateway sends the request to the next scheduler."""
    return refusal_response(request, _stopping())


def _key_of(request: InferRequest) -> bytes | tuple[bytes, bytes]:
    digest = request.text_digest
    return (digest, request.head) if digest else request.head


def _check_text_digest(request: InferRequest, served: ServedVersion) -> None:
    """Raise Unavailable if the tensors were made with other files than the version has."""
    if request.text_digest and request.text_digest != served.text_digest:
        raise Unavailable(_OTHER_FILES.format(served), accepted=True)
