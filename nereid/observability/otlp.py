"""Export of spans by OTLP from a separate thread; spans for a slow receiver are lost."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from grpc import Compression
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, TraceFlags, TraceState
from opentelemetry.trace import SpanKind as OtelSpanKind
from opentelemetry.trace.status import Status, StatusCode

from nereid.core.wire.trace_context import TRACE_STATE
from nereid.observability.otlp_http import HttpSpanExporter
from nereid.observability.tracing import SpanKind
from nereid.version import version

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from nereid.observability.otel_variables import ExportOptions
    from nereid.observability.trace_config import TraceConfig
    from nereid.observability.tracing import Attribute, Span

    Value = TypeVar("Value", bound=Attribute)

_log = logging.getLogger(__name__)

# Seconds that close() waits until the last spans are sent.
_CLOSE_S: Final = 2.0
_LOG_INTERVAL_S: Final = 60.0
_KINDS: Final = {kind: OtelSpanKind[kind.name] for kind in SpanKind}
_UNSET: Final = Status(StatusCode.UNSET)
# The queue limits the number of spans, not bytes, so texts of clients are cut.
_MAX_TEXT_LENGTH: Final = 1024


class OtlpTracer:
    """Tracer that sends one service's spans to a receiver. Any thread may call record()."""

    def __init__(
        self, config: TraceConfig, options: ExportOptions, service: str, instance: str
    ) -> None:
        """Start the export; raise ValueError or OSError if the configuration is unusable."""
        attributes = {
            "service.name": f"nereid-{service}",
            "service.namespace": "nereid",
            "service.version": version(),
            "service.instance.id": instance or f"{socket.gethostname()}-{os.getpid()}",
        }
        self._resource = Resource.create({**attributes, **dict(config.resource)})
        self._scope = InstrumentationScope(f"nereid.{service}")
        _limit_opentelemetrys_log()
        self._exporter = _exporter(config, options)
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=config.max_queue_size,
            schedule_delay_millis=config.schedule_delay_ms,
            max_export_batch_size=min(config.max_export_batch_size, config.max_queue_size),
        )

    def record(self, *spans: Span) -> None:
        """Queue finished spans for export; never blocks and never raises."""
        try:
            for span in spans:
                self._processor.on_end(self._readable(span))
        except Exception:
            # A request must not fail because of its trace.
            _log.exception("a span could not be recorded; its trace lacks it")

    def close(self) -> None:
        """Send the remaining spans; return after 2 s at the latest."""
        ending = threading.Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_S)
        if ending.is_alive():
            # This ends an export that waits for its next attempt.
            self._exporter.shutdown()

    def _readable(self, span: Span) -> ReadableSpan:
        # The parent of a SERVER span belongs to another process.
        serves = span.kind is SpanKind.SERVER
        return ReadableSpan(
            _short(span.name),
            context=_context(span.context, remote=False),
            parent=_context(span.parent, remote=serves) if span.parent else None,
            resource=self._resource,
            attributes={name: _short(value) for name, value in span.attributes.items()},
            events=[Event(name, timestamp=at_ns) for name, at_ns in span.events],
            links=[Link(_context(link, remote=True)) for link in span.links],
            kind=_KINDS[span.kind],
            status=_UNSET if span.error is None else Status(StatusCode.ERROR, _short(span.error)),
            start_time=span.start_ns,
            end_time=max(span.start_ns, span.end_ns),
            instrumentation_scope=self._scope,
        )


def _short(value: Value) -> Value:
    return value[:_MAX_TEXT_LENGTH] if isinstance(value, str) else value  # type: ignore[return-value]


def _context(context: bytes, *, remote: bool) -> SpanContext:
    trace_id, span_id = int.from_bytes(context[1:17]), int.from_bytes(context[17:25])
    state = _trace_state(text) if (text := context[TRACE_STATE]) else None
    return SpanContext(trace_id, span_id, remote, TraceFlags(context[25]), state)


@lru_cache(maxsize=256)
def _trace_state(text: bytes) -> TraceState:
    return TraceState.from_header([text.decode("ascii", "replace")])


def _exporter(config: TraceConfig, options: ExportOptions) -> SpanExporter:
    if config.url is not None and config.over_http:
        return HttpSpanExporter(config.url, options)
    return OTLPSpanExporter(
        endpoint=config.url,
        headers=options.headers or None,
        timeout=options.timeout_s,
        compression=Compression.Gzip if options.gzip else None,
    )


class _RateLimitedHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _LOG_INTERVAL_S
            _log.warning("traces: %s", record.getMessage())


_handler: Final = _RateLimitedHandler()


def _limit_opentelemetrys_log() -> None:
    """Limit OpenTelemetry's log, which reports each export attempt, sometimes with a traceback."""
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    if _handler not in logger.handlers:
        logger.addHandler(_handler)
