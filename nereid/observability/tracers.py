"""Opens what a service's spans go to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.observability.trace_config import parse_trace_config

if TYPE_CHECKING:
    from nereid.observability.trace_config import TraceSettings
    from nereid.observability.tracing import Tracer


def open_tracer(settings: TraceSettings, service: str, instance: str = "") -> Tracer | None:
    """A service's tracer; instance names one of several alike. None: spans are off."""
    config = parse_trace_config(settings.trace_config)
    if not config.to_spans:
        return None
    # OpenTelemetry takes time and memory to load: only where it is used.
    from nereid.observability.otlp import OtlpTracer  # noqa: PLC0415

    return OtlpTracer(config, service, instance)
