"""Metrics pages as OpenMetrics, for scrapers that prefer it (Prometheus does by default).

Counters without _total, such as Triton's, get the type unknown. prometheus_client's writer would
create and sort objects for each series, in an event loop that serves requests.
"""

from __future__ import annotations

import re
from typing import Final

from nereid.observability.metrics_page import page_lines

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS: Final = "application/openmetrics-text"
_TEXT: Final = frozenset({"text/plain", "text/*", "*/*"})
_VERSIONS: Final = frozenset({"0.0.1", "1.0.0"})
_HELP: Final = b"# HELP "
_TYPE: Final = b"# TYPE "
_TOTAL: Final = b"_total"
# OpenMetrics requires 1.0 in place of 1. Quotes in labels are escaped, so the pattern matches no
# label.
_WHOLE_BOUND: Final = re.compile(rb'([{,](?:le|quantile)="[0-9]+)"')


def prefers_openmetrics(accept: str) -> bool:
    """Return whether an Accept header gives OpenMetrics at least the text format's quality."""
    openmetrics = text = 0.0
    for part in accept.lower().split(","):
        kind, *given = (field.strip() for field in part.split(";"))
        parameters = dict(field.split("=", 1) for field in given if "=" in field)
        quality = _quality(parameters.get("q", "1"))
        if kind == _OPENMETRICS and parameters.get("version", "1.0.0") in _VERSIONS:
            openmetrics = max(openmetrics, quality)
        elif kind in _TEXT:
            text = max(text, quality)
    return openmetrics > 0 and openmetrics >= text


def to_openmetrics(page: bytes) -> bytes:
    """Convert a whole page of the text format, with or without exemplars, to OpenMetrics."""
    lines = []
    description = b""
    has_bounds = False
    for line in page_lines(page):
        if line[:1] != b"#":
            lines.append(_WHOLE_BOUND.sub(rb'\1.0"', line) if has_bounds else line)
        elif line.startswith(_HELP):
            description = line
        else:
            name, _, kind = line.removeprefix(_TYPE).rpartition(b" ")
            text = description.removeprefix(_HELP + name + b" ")
            has_bounds = kind in {b"histogram", b"summary"}
            if kind == b"counter" and not name.endswith(_TOTAL):
                kind = b"unknown"
            elif kind == b"counter":
                name = name.removesuffix(_TOTAL)
            if description:
                lines.append(b"%b%b %b" % (_HELP, name, text.replace(b'"', b'\\"')))
                description = b""
            lines.append(b"%b%b %b" % (_TYPE, name, kind))
    return b"\n".join((*lines, b"# EOF\n"))


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
