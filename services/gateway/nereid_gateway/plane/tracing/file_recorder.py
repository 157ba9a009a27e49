"""Records the traces of requests for trace files: times, and received and sent tensors.

Only the settings decide which requests are traced. A client's traceparent is forwarded as
unsampled, because other services would collect times that no file shows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from nereid.core.wire.trace_context import with_flags
from nereid.observability.tracing import (
    MAX_TRACED_TENSOR_BYTES,
    child_context,
    is_sampled,
    traced_inputs,
    traced_outputs,
    with_tensors,
)
from nereid_gateway.core.tensors.tensor_memory import tensor_bytes
from nereid_gateway.plane.tracing.file_format import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import (
        InferRequest,
        InferResponse,
        TracedModel,
        TracedTensor,
        TraceRules,
    )
    from nereid.observability.tracing import Sampler
    from nereid_gateway.core.infer_step import Infer, OnResponse, RequestHandle
    from nereid_gateway.plane.tracing.sampling import Sampling

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
# Maximum number of responses in one trace.
_MAX_RESPONSES: Final = 128


class TraceSink(Protocol):
    """Receiver of finished traces."""

    def record_trace(self, sampler: Sampler, trace: Trace | None) -> None:
        """Record the end of a chosen request. trace: None if it was refused or cancelled."""

    def set_samplers(self, samplers: Sequence[Sampler]) -> None:
        """Set the samplers that choose requests from now on."""

    def close(self) -> None:
        """Write the remaining traces within a bounded time. Do not call this on the event loop."""


class FileTracing:
    """A `request_traces.TracingStep` that records traces for files."""

    def __init__(self, sink: TraceSink, sampling: Sampling, infer: Infer) -> None:
        self._sink = sink
        self._sampling = sampling
        self._infer = infer

    def infer(self, request: InferRequest, on_response: OnResponse) -> RequestHandle:
        """Forward a request. If the request's sampler chooses the request, record its trace."""
        sampler = self._sampling.sampler_of(request)
        if not sampler.takes_next():
            context = request.trace_context
            if context and is_sampled(context):
                request.trace_context = with_flags(context, context[25] & 0xFE)
            return self._infer(request, on_response)
        return _FileTrace(self._sink, sampler, self._infer, request, on_response)

    def set_rules(self, rules: TraceRules) -> None:
        """Sample by these rules from now on."""
        self._sampling.set_rules(rules)
        self._sink.set_samplers(self._sampling.samplers)

    def close(self) -> None:
        """Write the remaining traces within a bounded time. Do not call this on the event loop."""
        self._sink.close()


class _FileTrace:
    __slots__ = (
        "_done",
        "_handle",
        "_moments",
        "_on_response",
        "_sampler",
        "_send_events",
        "_sent_ns",
        "_sink",
        "_tensors",
    )

    def __init__(
        self,
        sink: TraceSink,
        sampler: Sampler,
        infer: Infer,
        request: InferRequest,
        on_response: OnResponse,
    ) -> None:
        self._sink = sink
        self._sampler = sampler
        self._on_response = on_response
        self._tensors: list[TracedTensor] = []
        self._done = False
        # A new trace id, because the client may have several pending requests with one trace.
        request.trace_context = child_context(b"")
        if sampler.rule.tensors:
            request.trace_context = with_tensors(request.trace_context)
            data = [_copy(tensor_bytes(request, payload)) for payload in request.payloads]
            self._tensors += traced_inputs(request.head, data)
        assert request.arrival is not None, "the front recorded no arrival"
        protocol, received_ns = request.arrival.protocol, request.arrival.received_ns
        start, end = _RECEIVED[protocol]
        self._send_events = _SENT[protocol]
        self._sent_ns = _now_ns()
        self._moments: list[tuple[str, int]] = [(start, received_ns), (end, self._sent_ns)]
        self._handle = infer(request, self._forward_response)

    def _forward_response(self, response: InferResponse) -> None:
        now_ns = _now_ns()
        shown = bool(response.head or response.error or not response.more)
        shown = shown and (not response.more or len(self._moments) < 3 * _MAX_RESPONSES)
        if shown and response.head and self._sampler.rule.tensors and response.error is None:
            self._tensors += traced_outputs(response.head, map(_copy, response.payloads))
        try:
            self._on_response(response)
        finally:
            if shown:
                start, end = self._send_events
                self._moments += ((_COMPLETE, now_ns), (start, now_ns), (end, _now_ns()))
            if not response.more:
                self._record(response.trace, now_ns)

    def cancel(self) -> None:
        self._handle.cancel()
        self._record((), 0)

    def set_flow(self, *, paused: bool) -> None:
        self._handle.set_flow(paused=paused)

    def _record(self, models: tuple[TracedModel, ...], responded_ns: int) -> None:
        if self._done:
            return
        self._done = True
        trace = None
        if models:
            models = to_local_clock(models, self._sent_ns, responded_ns)
            trace = Trace(models, self._moments, self._tensors)
        # On Triton, refused and cancelled requests have no trace either.
        self._sink.record_trace(self._sampler, trace)


def to_local_clock(
    models: tuple[TracedModel, ...], sent_ns: int, responded_ns: int
) -> tuple[TracedModel, ...]:
    """Return the models, with times of this host's clock.

    Times outside the request's duration come from another host's clock. All times are then shifted
    to the middle of the duration.
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
    """Return a copy, because a tensor's memory is reused, or None if the tensor is too large."""
    assert isinstance(payload, bytes | memoryview), "a reference without its segment"
    return bytes(payload) if len(payload) <= MAX_TRACED_TENSOR_BYTES else None
