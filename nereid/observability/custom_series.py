"""Custom metrics of Python models, as executors report them: what several have counted adds up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid.pb import nereid_pb2 as pb

GAUGE = "gauge"
# A metric's name, and its labels.
SeriesKey = tuple[str, ...]


def series_key(series: pb.CustomSeries) -> SeriesKey:
    """What series of one metric have in common."""
    labels = sorted(series.labels.items())
    return (series.name, *(part for label in labels for part in label))


def sum_of(known: pb.CustomSeries | None, series: pb.CustomSeries) -> pb.CustomSeries:
    """One counter or histogram for two of the same key; the first, if their bounds differ."""
    if known is None:
        return series
    if known.kind != series.kind or list(known.bounds) != list(series.bounds):
        return known
    both = type(series)()
    both.CopyFrom(known)
    both.value += series.value
    both.counts[:] = [mine + other for mine, other in zip(known.counts, series.counts, strict=True)]
    return both
