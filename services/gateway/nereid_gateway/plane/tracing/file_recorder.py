"""Records the traces of requests for trace files: times, and received and sent tensors.

Only the settings decide which requests are traced. A client's traceparent is forwarded as
unsampled, because other services would collect times that no file shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from nereid.core.wire.trace_context import with_flags
from nereid.observability.tracing import child_context, is_sampled, with_tensors
from nereid_gateway.core.request_record import Sample
from nereid_gateway.plane.tracing.file_format import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import InferRequest, TracedModel, TraceRules
    from nereid.observability.tracing import Sampler
    from nereid_gateway.core.request_record import RequestRecord
    from nereid_gateway.plane.tracing.sampling import Sampling

_RECEIVED: Final = {
    "http": ("HTTP_RECV_START", "HTTP_RECV_END"),
    "grpc": ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
}
_SENT: Final = {
    "http": ("HTTP_SEND_START", "HTTP_SEND_END"),
    "grpc": ("GRPC_SEND_START", "GRPC_SEND_END"),
}
_COMPLETE: Final = "INFER_RESPONSE_COMPLETE"


class TraceSink(Protocol):
    """Receiver of finished traces."""

    def record_trace(self, sampler: Sampler, trace: Trace | None) -> None:
        """Record the end of a chosen request. trace: None if it was refused or cancelled."""

    def set_samplers(self, samplers: Sequence[Sampler]) -> None:
        """Set the samplers that choose requests from now on."""

    def close(self) -> None:
        """Write the remaining traces within a bounded time. Do not call this on the event loop."""


class FileTracing:
    """A `request_traces.Tracing` that writes traces to files."""

    def __init__(self, sink: TraceSink, sampling: Sampling) -> None:
        self._sink = sink
        self._sampling = sampling

    def sample(self, request: InferRequest) -> Sample | None:
        """Return the sample of a request that is traced, which gets a trace context of its own."""
        context = request.trace_context
        sampler = self._sampling.sampler_of(request)
        if not sampler.takes_next():
            if context and is_sampled(context):
                request.trace_context = with_flags(context, context[25] & 0xFE)
            return None
        sample = Sample(sampler, context, sampler.rule.tensors)
        # A new trace id, because the client may have several pending requests with one trace.
        request.trace_context = child_context(b"")
        if sampler.rule.tensors:
            request.trace_context = with_tensors(request.trace_context)
        sample.copy_inputs(request)
        return sample

    def add_record(self, record: RequestRecord, sample: Sample) -> None:
        """Write the trace of a request that has ended."""
        trace = None
        if sample.models:
            start, end = _RECEIVED[record.protocol]
            send_start, send_end = _SENT[record.protocol]
            moments = [(start, record.received_ns), (end, record.submitted_ns)]
            for responded_ns, sent_ns in sample.sends:
                moments += (
                    (_COMPLETE, responded_ns),
                    (send_start, responded_ns),
                    (send_end, sent_ns),
                )
            models = to_local_clock(sample.models, record.submitted_ns, record.responded_ns)
            trace = Trace(models, moments, sample.tensors)
        # On Triton, refused and cancelled requests have no trace either.
        self._sink.record_trace(sample.sampler, trace)

    def set_rules(self, rules: TraceRules) -> None:
        """Sample by these rules from now on."""
        self._sampling.set_rules(rules)
        self._sink.set_samplers(self._sampling.samplers)

    def close(self) -> None:
        """Write the remaining traces within a bounded time. Do not call this on the event loop."""
        self._sink.close()


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
