"""Open a service's tracer, which exports the service's spans."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from nereid.observability.otel_variables import export_options, read_variables
from nereid.observability.trace_config import parse_trace_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.observability.trace_config import TraceSettings
    from nereid.observability.tracing import Tracer

_log = logging.getLogger(__name__)


def open_tracer(
    settings: TraceSettings,
    service: str,
    instance: str = "",
    environ: Mapping[str, str] = os.environ,
) -> Tracer | None:
    """Return a service's tracer; `None` if spans are off, or no exporter can be set up."""
    config = parse_trace_config(settings.trace_config)
    if not config.to_spans:
        return None
    # OpenTelemetry takes time and memory to load.
    from nereid.observability.otlp import OtlpTracer  # noqa: PLC0415

    options, ignored = export_options(environ)
    for line in (*read_variables(environ).ignored, *ignored):
        _log.warning("traces: %s; it is ignored", line)
    try:
        return OtlpTracer(config, options, service, instance)
    except (OSError, ValueError) as error:
        _log.error("no traces are exported: %s", error)
        return None
