"""Spans to OpenTelemetry's form and out by OTLP over gRPC, from a thread of their own.

The request path pays for an append to a bounded queue. A receiver that is away, slow or full costs
spans and one line a minute in the log. Loaded by nereid.observability.tracing alone, and only where
traces are on. Knows no service.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

if TYPE_CHECKING:
    from nereid.observability.tracing import Span, TraceConfig

_log = logging.getLogger(__name__)

# How long an ending service waits for its last spans to leave.
_CLOSE_S: Final = 2.0
_PAUSE_BETWEEN_LINES_S: Final = 60.0
_UNSET: Final = Status(StatusCode.UNSET)


class OtlpTracer:
    """One service's spans, on their way to a receiver. record() may be called from any thread."""

    def __init__(self, config: TraceConfig, service: str, instance: str) -> None:
        attributes = {"service.name": f"nereid-{service}", "service.namespace": "nereid"}
        if instance:
            attributes["service.instance.id"] = instance
        self._resource = Resource.create({**attributes, **dict(config.resource)})
        self._scope = InstrumentationScope(f"nereid.{service}")
        _tame_log()
        self._exporter = OTLPSpanExporter(endpoint=config.url)
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=config.max_queue_size,
            schedule_delay_millis=config.schedule_delay_ms,
            max_export_batch_size=min(config.max_export_batch_size, config.max_queue_size),
        )

    def record(self, *spans: Span) -> None:
        try:
            for span in spans:
                self._processor.on_end(self._readable(span))
        except Exception:
            # A request must not fail for its trace.
            _log.exception("a span could not be recorded")

    def close(self) -> None:
        ending = threading.Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_S)
        if ending.is_alive():
            # Gives up an attempt that waits for its next try.
            self._exporter.shutdown()

    def _readable(self, span: Span) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            context=_context(span.context, remote=False),
            parent=_context(span.parent, remote=span.serves) if span.parent else None,
            resource=self._resource,
            attributes=dict(span.attributes),
            events=[Event(name, timestamp=at_ns) for name, at_ns in span.events],
            links=[Link(_context(link, remote=True)) for link in span.links],
            kind=SpanKind.SERVER if span.serves else SpanKind.INTERNAL,
            status=_UNSET if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.start_ns,
            end_time=max(span.start_ns, span.end_ns),
            instrumentation_scope=self._scope,
        )


def _context(context: bytes, *, remote: bool) -> SpanContext:
    trace_id, span_id = int.from_bytes(context[1:17]), int.from_bytes(context[17:25])
    return SpanContext(trace_id, span_id, remote, TraceFlags(context[25]))


class _Quiet(logging.Handler):
    """Tells what OpenTelemetry has to complain about as one line, and no more than one a minute."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _PAUSE_BETWEEN_LINES_S
            _log.warning("traces: %s", record.getMessage())


_quiet: Final = _Quiet()


def _tame_log() -> None:
    """OpenTelemetry logs each attempt of an export, some with a trace of calls."""
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    if _quiet not in logger.handlers:
        logger.addHandler(_quiet)
