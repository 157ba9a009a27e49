"""Writes custom metrics of Python models, as executors report them, to the metrics page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.observability.custom_series import GAUGE, SeriesKey, series_key, sum_of
from nereid.observability.metrics_page import Family, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.observability.metrics_page import Page
    from nereid.pb import nereid_pb2 as pb


def write_custom(page: Page, reports: Iterable[pb.CustomMetrics]) -> None:
    """Write the series of all reports, merged by name and labels. The last gauge counts."""
    merged: dict[SeriesKey, pb.CustomSeries] = {}
    families: dict[str, Family] = {}
    for metrics in reports:
        for series in metrics.series:
            family = Family(series.name, series.kind, series.description)
            if families.setdefault(series.name, family).kind == series.kind:
                key = series_key(series)
                known = None if series.kind == GAUGE else merged.get(key)
                merged[key] = sum_of(known, series)
    for series in merged.values():
        family = families[series.name]
        labels = dict(sorted(series.labels.items()))
        if series.kind == "histogram":
            observed = Histogram(series.bounds)
            observed.counts[:] = series.counts
            page.add_histogram(family, labels, observed, series.value)
        else:
            page.add_value(family, series.value, labels)
