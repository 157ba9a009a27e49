"""Custom metrics of Python models, as executors report them, and sums of such metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid.pb import nereid_pb2 as pb

GAUGE = "gauge"
# Name of a metric, followed by the names and values of its labels.
SeriesKey = tuple[str, ...]


def series_key(series: pb.CustomSeries) -> SeriesKey:
    """Return a key that is equal for series with the same name and labels."""
    labels = sorted(series.labels.items())
    return (series.name, *(part for label in labels for part in label))


def sum_of(known: pb.CustomSeries | None, series: pb.CustomSeries) -> pb.CustomSeries:
    """Return the sum of two series with one key; `known` alone if kind or bounds differ."""
    if known is None:
        return series
    if known.kind != series.kind or list(known.bounds) != list(series.bounds):
        return known
    both = type(series)()
    both.CopyFrom(known)
    both.value += series.value
    both.counts[:] = [mine + other for mine, other in zip(known.counts, series.counts, strict=True)]
    return both
