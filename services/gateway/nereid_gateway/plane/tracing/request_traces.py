"""Samples requests, and exports a root span and spans for receiving and sending.

A request that is not sampled keeps its trace context.
"""

from __future__ import annotations

import logging
import time
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
from nereid_gateway.core.infer_step import InferStep
from nereid_gateway.plane.tracing.call_attributes import CANCELLED, call_attributes
from nereid_gateway.plane.tracing.file_recorder import FileTracing
from nereid_gateway.plane.tracing.file_writer import TraceFiles
from nereid_gateway.plane.tracing.sampling import Sampling

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest, InferResponse, TraceRules
    from nereid.observability.trace_config import TraceSettings
    from nereid.observability.tracing import Attribute, Tracer
    from nereid_gateway.core.infer_step import Infer, OnResponse, RequestHandle

_log = logging.getLogger(__name__)

_now_ns = time.monotonic_ns
_ROOT: Final = "InferRequest"
_DISCONNECTED: Final = ErrorStatus(CANCELLED, "the client disconnected")


class TracingStep(InferStep, Protocol):
    """Step that decides whether to trace a request. The request's arrival must be set."""

    def set_rules(self, rules: TraceRules) -> None:
        """Sample by these rules from now on."""

    def close(self) -> None:
        """Write or export the remaining traces in bounded time. Do not call on the event loop."""


def open_tracing(settings: TraceSettings, infer: Infer) -> TracingStep | None:
    """Return the tracing step that the settings ask for, or `None` if no request is traced."""
    config = parse_trace_config(settings.trace_config)
    sampling = Sampling(config.rule, parent_based=config.parent_based)
    if config.to_file:
        return FileTracing(TraceFiles(config.file), sampling, infer)
    if config.levels and not config.on:
        # Triton starts with such settings too.
        _log.warning("no request is traced: name a file by --trace-config triton,file=PATH")
    tracer = open_tracer(settings, "gateway")
    return None if tracer is None else SpanTracing(tracer, sampling, infer)


class SpanTracing:
    """A `TracingStep` that exports spans."""

    def __init__(self, tracer: Tracer, sampling: Sampling, infer: Infer) -> None:
        self._tracer = tracer
        self._sampling = sampling
        self._infer = infer

    def infer(self, request: InferRequest, on_response: OnResponse) -> RequestHandle:
        """Forward a request; export its spans if it is sampled."""
        if not self._sampling.sampler_of(request).wants(request.trace_context):
            return self._infer(request, on_response)
        return _SpanTrace(self._tracer, self._infer, request, on_response)

    def set_rules(self, rules: TraceRules) -> None:
        """Sample by these rules from now on."""
        self._sampling.set_rules(rules)

    def close(self) -> None:
        """Export the remaining spans within a bounded time. Do not call this on the event loop."""
        self._tracer.close()


class _SpanTrace:
    __slots__ = (
        "_arrival",
        "_context",
        "_done",
        "_handle",
        "_on_response",
        "_parent",
        "_request",
        "_sent_ns",
        "_tracer",
    )

    def __init__(
        self, tracer: Tracer, infer: Infer, request: InferRequest, on_response: OnResponse
    ) -> None:
        self._tracer = tracer
        self._request = request
        self._on_response = on_response
        self._done = False
        self._parent = request.trace_context
        self._context = request.trace_context = child_context(request.trace_context)
        assert request.arrival is not None, "the front recorded no arrival"
        self._arrival = request.arrival
        self._sent_ns = _now_ns()
        self._handle = infer(request, self._forward_response)

    def _forward_response(self, response: InferResponse) -> None:
        if response.more:
            self._on_response(response)
            return
        responded_ns = _now_ns()
        try:
            self._on_response(response)
        finally:
            self._record(response.error, responded_ns)

    def cancel(self) -> None:
        self._handle.cancel()
        self._record(_DISCONNECTED, None)

    def set_flow(self, *, paused: bool) -> None:
        self._handle.set_flow(paused=paused)

    def _record(self, error: ErrorStatus | None, responded_ns: int | None) -> None:
        if self._done:
            return
        self._done = True
        offset_ns = monotonic_to_unix_ns()
        ended_ns = _now_ns() + offset_ns
        received_ns = self._arrival.received_ns + offset_ns
        sent_ns = self._sent_ns + offset_ns
        spans = [
            Span(
                name=_ROOT,
                context=self._context,
                parent=self._parent,
                start_ns=received_ns,
                end_ns=ended_ns,
                attributes=self._attributes(0 if error is None else error.code),
                error=None if error is None else error.message,
                kind=SpanKind.SERVER,
            ),
            self._part("receive", received_ns, sent_ns),
        ]
        if responded_ns is not None:
            spans.append(self._part("send", responded_ns + offset_ns, ended_ns))
        self._tracer.record(*spans)

    def _part(self, name: str, start_ns: int, end_ns: int) -> Span:
        context = child_context(self._context)
        return Span(
            name=name, context=context, parent=self._context, start_ns=start_ns, end_ns=end_ns
        )

    def _attributes(self, code: int) -> dict[str, Attribute]:
        attributes = call_attributes(self._arrival, code)
        attributes["nereid.protocol"] = self._arrival.protocol
        if self._request.request_id:
            attributes["triton.request_id"] = self._request.request_id
        try:
            head = kserve_pb2.ModelInferRequest.FromString(self._request.head)
        except DecodeError:
            return attributes
        attributes["triton.model_name"] = head.model_name
        if head.model_version:
            attributes["triton.model_version"] = head.model_version
        return attributes
