"""Custom metrics of Python models, as executors report them, on the metrics page.

Several executors, or instances, may report the same metric.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.observability.metrics_page import Family, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.observability.metrics_page import Page
    from nereid.pb import nereid_pb2 as pb


def write_custom(page: Page, reports: Iterable[pb.CustomMetrics]) -> None:
    """Write the reports' series: counters with the same name and labels are added up; of gauges the
    last one counts.
    """
    merged: dict[tuple[str, ...], pb.CustomSeries] = {}
    families: dict[str, Family] = {}
    for metrics in reports:
        for series in metrics.series:
            family = Family(series.name, series.kind, series.description)
            if families.setdefault(series.name, family).kind == series.kind:
                _merge(merged, series)
    for series in merged.values():
        family = families[series.name]
        labels = dict(sorted(series.labels.items()))
        if series.kind == "histogram":
            observed = Histogram(series.bounds)
            observed.counts[:] = series.counts
            page.add_histogram(family, labels, observed, series.value)
        else:
            page.add_value(family, series.value, labels)


def _merge(merged: dict[tuple[str, ...], pb.CustomSeries], series: pb.CustomSeries) -> None:
    labels = sorted(series.labels.items())
    key = (series.name, *(part for label in labels for part in label))
    known = merged.get(key)
    if known is None or series.kind == "gauge":
        merged[key] = series
    elif list(known.bounds) == list(series.bounds):
        counts = [mine + other for mine, other in zip(known.counts, series.counts, strict=True)]
        both = merged[key] = type(series)()
        both.CopyFrom(known)
        both.value += series.value
        both.counts[:] = counts
