"""Samples requests, and exports a root span and spans for receiving and sending.

A request that is not sampled keeps its trace context.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import DecodeError

from nereid.core.wire.messages import ErrorStatus
from nereid.observability.trace_config import parse_trace_config
from nereid.observability.tracers import open_tracer
from nereid.observability.tracing import (
    Span,
    SpanKind,
    child_context,
    monotonic_to_unix_ns,
)
from nereid.pb import kserve_pb2
from nereid_gateway.core.request_record import Sample
from nereid_gateway.plane.tracing.call_attributes import CANCELLED, call_attributes
from nereid_gateway.plane.tracing.file_recorder import FileTracing
from nereid_gateway.plane.tracing.file_writer import TraceFiles
from nereid_gateway.plane.tracing.sampling import Sampling

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest, TraceRules
    from nereid.observability.trace_config import TraceSettings
    from nereid.observability.tracing import Attribute, Tracer
    from nereid_gateway.core.request_record import RequestRecord

_log = logging.getLogger(__name__)

_ROOT: Final = "InferRequest"
_DISCONNECTED: Final = ErrorStatus(CANCELLED, "the client disconnected")


class Tracing(Protocol):
    """Chooses requests to trace, and reads their records at the end."""

    def sample(self, request: InferRequest) -> Sample | None:
        """Return the sample of a request that is traced, which gets a trace context of its own."""

    def add_record(self, record: RequestRecord, sample: Sample) -> None:
        """Write or export the trace of a sampled request that has ended."""

    def set_rules(self, rules: TraceRules) -> None:
        """Sample by these rules from now on."""

    def close(self) -> None:
        """Write or export the remaining traces in bounded time. Do not call on the event loop."""


def open_tracing(settings: TraceSettings) -> Tracing | None:
    """Return the tracing that the settings ask for, or `None` if no request is traced."""
    config = parse_trace_config(settings.trace_config)
    sampling = Sampling(config.rule, parent_based=config.parent_based)
    if config.to_file:
        return FileTracing(TraceFiles(config.file), sampling)
    if config.levels and not config.on:
        # Triton starts with such settings too.
        _log.warning("no request is traced: name a file by --trace-config triton,file=PATH")
    tracer = open_tracer(settings, "gateway")
    return None if tracer is None else SpanTracing(tracer, sampling)


class SpanTracing:
    """A `Tracing` that exports spans."""

    def __init__(self, tracer: Tracer, sampling: Sampling) -> None:
        self._tracer = tracer
        self._sampling = sampling

    def sample(self, request: InferRequest) -> Sample | None:
        """Return the sample of a request that is traced, which gets a trace context of its own."""
        sampler = self._sampling.sampler_of(request)
        if not sampler.wants(request.trace_context):
            return None
        sample = Sample(sampler, request.trace_context)
        request.trace_context = child_context(request.trace_context)
        return sample

    def add_record(self, record: RequestRecord, sample: Sample) -> None:
        """Export the spans of a request that has ended."""
        error = _DISCONNECTED if record.cancelled else record.error
        context = record.request.trace_context
        offset_ns = monotonic_to_unix_ns()
        received_ns = record.received_ns + offset_ns
        ended_ns = record.ended_ns + offset_ns
        spans = [
            Span(
                name=_ROOT,
                context=context,
                parent=sample.parent,
                start_ns=received_ns,
                end_ns=ended_ns,
                attributes=_attributes(record),
                error=None if error is None else error.message,
                kind=SpanKind.SERVER,
            ),
            _part(context, "receive", received_ns, record.submitted_ns + offset_ns),
        ]
        begun_ns, tokenized_ns = record.tokenized_ns or (0, 0)
        if tokenized_ns:
            spans.append(_part(context, "tokenize", begun_ns + offset_ns, tokenized_ns + offset_ns))
        if not record.cancelled:
            spans.append(_part(context, "send", record.responded_ns + offset_ns, ended_ns))
        self._tracer.record(*spans)

    def set_rules(self, rules: TraceRules) -> None:
        """Sample by these rules from now on."""
        self._sampling.set_rules(rules)

    def close(self) -> None:
        """Export the remaining spans within a bounded time. Do not call this on the event loop."""
        self._tracer.close()


def _part(parent: bytes, name: str, start_ns: int, end_ns: int) -> Span:
    context = child_context(parent)
    return Span(name=name, context=context, parent=parent, start_ns=start_ns, end_ns=end_ns)


def _attributes(record: RequestRecord) -> dict[str, Attribute]:
    request = record.request
    attributes = call_attributes(record, record.status)
    attributes["nereid.protocol"] = record.protocol
    if request.request_id:
        attributes["triton.request_id"] = request.request_id
    try:
        head = kserve_pb2.ModelInferRequest.FromString(request.head)
    except DecodeError:
        return attributes
    attributes["triton.model_name"] = head.model_name
    if head.model_version:
        attributes["triton.model_version"] = head.model_version
    return attributes
