"""OpenMetrics as Prometheus' own strict parser reads it."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families


def read_openmetrics(page: str) -> list[Metric]:
    """The families of a page; raises ValueError where it breaks a rule."""
    return list(text_string_to_metric_families(page))  # type: ignore[no-untyped-call]
