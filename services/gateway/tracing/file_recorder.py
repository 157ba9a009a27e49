"""A request's trace for a file, as the gateway sees it: what came in and went out, and when.

Stands between a front and the data plane where traces go to files, and nowhere else. Which requests
are traced is the settings' decision alone: a client's traceparent travels on as unsampled, so that
nobody gathers times that no file is for. Knows nothing of files but that they take traces.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from nereid.observability.tracing import (
    LARGEST_TENSOR_BYTES,
    child_of,
    inputs_shown,
    is_sampled,
    outputs_shown,
    with_tensors,
)
from nereid.services.gateway.shared_tensors import tensor_bytes
from nereid.services.gateway.tracing.file_format import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.messages import (
        InferRequest,
        InferResponse,
        TracedModel,
        TracedTensor,
        TraceRules,
    )
    from nereid.observability.tracing import Sampler
    from nereid.services.gateway.data_plane import UnderWay
    from nereid.services.gateway.tracing.sampling import Sampling

    OnResponse = Callable[[InferResponse], None]

_now_ns = time.monotonic_ns
_RECEIVED: Final = {
    "http": ("HTTP_RECV_START", "HTTP_RECV_END"),
    "grpc": ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
}
_SENT: Final = {
    "http": ("HTTP_SEND_START", "HTTP_SEND_END"),
    "grpc": ("GRPC_SEND_START", "GRPC_SEND_END"),
}
_COMPLETE: Final = "INFER_RESPONSE_COMPLETE"
# A trace shows so many of a request's answers.
_MOST_RESPONSES: Final = 128


class Files(Protocol):
    """Where traces go."""

    def take(self, sampler: Sampler, trace: Trace | None) -> None:
        """A request that sampler chose has ended; without a trace: there is nothing to tell."""

    def follow(self, samplers: Sequence[Sampler]) -> None:
        """Requests go by these from now on."""

    def close(self) -> None:
        """Write what is left, within a bounded time; call off the event loop."""


class FileTracing:
    """A tracing.Tracing."""

    def __init__(
        self,
        files: Files,
        sampling: Sampling,
        infer: Callable[[InferRequest, OnResponse], UnderWay],
    ) -> None:
        self._files = files
        self._sampling = sampling
        self._infer = infer
        self.close = files.close

    def infer(
        self, request: InferRequest, on_response: OnResponse, protocol: str, received_ns: int
    ) -> UnderWay:
        sampler = self._sampling.sampler_of(request)
        if not sampler.takes_next():
            context = request.trace_context
            if context and is_sampled(context):
                request.trace_context = context[:25] + bytes((context[25] & 0xFE,))
            return self._infer(request, on_response)
        trace = _Traced(self._files, sampler, request, on_response)
        trace.receive(protocol, received_ns)
        trace.under_way = self._infer(request, trace.on_response)
        return trace

    def follow(self, rules: TraceRules) -> None:
        self._sampling.follow(rules)
        self._files.follow(self._sampling.samplers)


class _Traced:
    """One chosen request, until its last answer is handed to the connection or nobody wants it."""

    __slots__ = (
        "_done",
        "_files",
        "_moments",
        "_on_response",
        "_request",
        "_sampler",
        "_sent",
        "_sent_ns",
        "_tensors",
        "under_way",
    )

    def __init__(
        self, files: Files, sampler: Sampler, request: InferRequest, on_response: OnResponse
    ) -> None:
        self._files = files
        self._sampler = sampler
        self._request = request
        self._on_response = on_response
        self._moments: list[tuple[str, int]] = []
        self._tensors: list[TracedTensor] = []
        self._sent: tuple[str, str] = ("", "")
        self._sent_ns = 0
        self._done = False
        self.under_way: UnderWay | None = None
        # Of its own: others of the client's trace may be under way at the same time.
        request.trace_context = child_of(b"")

    def receive(self, protocol: str, received_ns: int) -> None:
        """It came by this protocol, at this time, and leaves for the mesh now."""
        request = self._request
        if self._sampler.rule.tensors:
            request.trace_context = with_tensors(request.trace_context)
            data = [_copy(tensor_bytes(request, each)) for each in request.payloads]
            self._tensors += inputs_shown(request.head, data)
        self._sent_ns = _now_ns()
        start, end = _RECEIVED[protocol]
        self._sent = _SENT[protocol]
        self._moments += ((start, received_ns), (end, self._sent_ns))

    def on_response(self, response: InferResponse) -> None:
        """Hand the answer on, then, if it is the last, tell the trace."""
        now_ns = _now_ns()
        shown = bool(response.head or response.error or not response.more)
        shown = shown and (not response.more or len(self._moments) < 3 * _MOST_RESPONSES)
        if shown and response.head and self._sampler.rule.tensors and response.error is None:
            self._tensors += outputs_shown(response.head, map(_copy, response.payloads))
        try:
            self._on_response(response)
        finally:
            if shown:
                start, end = self._sent
                self._moments += ((_COMPLETE, now_ns), (start, now_ns), (end, _now_ns()))
            if not response.more:
                self._end(response.trace, now_ns)

    def cancel(self) -> None:
        """The client went before its answer came."""
        if self.under_way is not None:
            self.under_way.cancel()
        self._end((), 0)

    def set_flow(self, *, paused: bool) -> None:
        if self.under_way is not None:
            self.under_way.set_flow(paused=paused)

    def _end(self, models: tuple[TracedModel, ...], responded_ns: int) -> None:
        if self._done:
            return
        self._done = True
        trace = None
        if models:
            models = moved(models, self._sent_ns, responded_ns)
            trace = Trace(models, self._moments, self._tensors)
        # Else it was refused, or given up: Triton does not tell of it, either.
        self._files.take(self._sampler, trace)


def moved(
    models: tuple[TracedModel, ...], sent_ns: int, responded_ns: int
) -> tuple[TracedModel, ...]:
    """The times by this host's clock. Those of another host do not fit into the time that the
    request took, unless by chance: they are put into its middle.
    """
    times = models[0].times
    first_ns, last_ns = times[0][1], times[-1][1]
    if sent_ns <= first_ns and last_ns <= responded_ns:
        return models
    offset_ns = (sent_ns + responded_ns - first_ns - last_ns) // 2
    return tuple(
        model._replace(times=tuple((name, ns + offset_ns) for name, ns in model.times))
        for model in models
    )


def _copy(payload: object) -> bytes | None:
    """A tensor's bytes, since their memory is used again; None of the largest."""
    assert isinstance(payload, bytes | memoryview), "a reference to nowhere"
    return bytes(payload) if len(payload) <= LARGEST_TENSOR_BYTES else None
