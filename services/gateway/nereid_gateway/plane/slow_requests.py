"""Step of the data plane that records the slowest requests while a console is open."""

from __future__ import annotations

import time
from time import monotonic_ns
from typing import TYPE_CHECKING

from nereid.core.wire.trace_context import TRACE_ID
from nereid.observability.tracing import is_sampled
from nereid.pb import kserve_pb2
from nereid_gateway.plane.slowest import Slowest

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest, InferResponse, RequestTimings
    from nereid.facts import document
    from nereid_gateway.core.infer_step import Infer, OnResponse, RequestHandle


class SlowRequests:
    """An `InferStep` that records the slowest requests."""

    def __init__(self, infer: Infer) -> None:
        self._infer = infer
        self._slowest: Slowest[document.SlowRequest] = Slowest()
        self._watched = False

    def watch(self, *, watched: bool) -> None:
        """Begin or stop to record, and forget earlier requests."""
        self._watched = watched
        self._slowest.clear()

    def slowest(self) -> list[document.SlowRequest]:
        """Return the slowest requests of the last minute, the slowest one first."""
        return self._slowest.slowest(time.monotonic())

    def infer(self, request: InferRequest, on_response: OnResponse, /) -> RequestHandle:
        """Forward a request, and record it if it is slow and a console is open."""
        if not self._watched:
            return self._infer(request, on_response)
        # The scheduler then returns timings. The front writes them only to clients that asked for
        # them.
        request.wants_timings = True
        return self._infer(request, _Watched(self, request, on_response).on_response)

    def record(
        self, request: InferRequest, response: InferResponse, timings: RequestTimings | None,
        duration_ns: int,
    ) -> None:  # fmt: skip
        """Record a request after its last response, if the request is among the slowest."""
        if self._watched and self._slowest.accepts(duration_ns, time.monotonic()):
            self._slowest.add(duration_ns, _described(request, response, timings, duration_ns))


class _Watched:
    __slots__ = ("_began_ns", "_on_response", "_owner", "_request", "_timings")

    def __init__(self, owner: SlowRequests, request: InferRequest, on_response: OnResponse) -> None:
        self._owner = owner
        self._request = request
        self._on_response = on_response
        self._timings: RequestTimings | None = None
        self._began_ns = monotonic_ns()

    def on_response(self, response: InferResponse) -> None:
        if response.timings is not None:
            self._timings = response.timings
        if not response.more:
            duration_ns = monotonic_ns() - self._began_ns
            self._owner.record(self._request, response, self._timings, duration_ns)
        self._on_response(response)


def _described(
    request: InferRequest,
    response: InferResponse,
    timings: RequestTimings | None,
    duration_ns: int,
) -> document.SlowRequest:
    head = kserve_pb2.ModelInferRequest.FromString(request.head)
    shown: document.SlowRequest = {
        "time_s": round(time.time(), 3),
        "model": head.model_name,
        "version": head.model_version,
        "request_id": request.request_id[:200],
        "duration_us": duration_ns / 1000,
    }
    if request.id:
        shown["number"] = str(request.id)
    if response.error is not None:
        shown["error"] = response.error.message[:1000]
    elif response.head and not shown["version"]:
        reply = kserve_pb2.ModelInferResponse.FromString(response.head)
        shown["version"] = reply.model_version
    context = request.trace_context
    if is_sampled(context):
        shown["trace_id"] = context[TRACE_ID].hex()
    if timings is not None:
        shown["phases_us"] = {name: ns / 1000 for name, ns in timings.phases}
        for name in ("batch_size", "instance", "attempt"):
            if value := getattr(timings, name):
                shown[name] = value
    return shown
