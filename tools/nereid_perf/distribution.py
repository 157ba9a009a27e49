"""Computes figures in us from histograms in ns; the histogram library takes 10 ms for each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdrh.histogram import HdrHistogram
    from numpy.typing import NDArray


def percentiles_us(histogram: HdrHistogram, percentiles: Sequence[float]) -> list[float]:
    """Return percentiles in us; they are 0 if nothing was recorded."""
    if not histogram.get_total_count():
        return [0.0] * len(percentiles)
    below = np.cumsum(_counts(histogram))
    targets = [histogram.get_target_count_at_percentile(percentile) for percentile in percentiles]
    return [
        float(histogram.get_highest_equivalent_value(histogram.get_value_from_index(int(index))))
        / 1000
        for index in np.searchsorted(below, targets)
    ]


def percentile_us(histogram: HdrHistogram, percentile: float) -> float:
    """Return a percentile in us, or 0 if nothing was recorded."""
    return percentiles_us(histogram, (percentile,))[0]


def mean_us(histogram: HdrHistogram) -> float:
    """Return the mean in us, or 0 if nothing was recorded."""
    values, counts = recorded_us(histogram)
    return float(values @ counts) / max(int(histogram.get_total_count()), 1)


def deviation_us(histogram: HdrHistogram) -> float:
    """Return the standard deviation in us, or 0 if nothing was recorded."""
    values, counts = recorded_us(histogram)
    squares = (values - mean_us(histogram)) ** 2
    return math.sqrt(float(squares @ counts) / max(int(histogram.get_total_count()), 1))


def max_us(histogram: HdrHistogram) -> float:
    """Return the maximum in us, or 0 if nothing was recorded."""
    return float(histogram.get_max_value()) / 1000


def count_within(histogram: HdrHistogram, limit_us: float) -> int:
    """Return how many values do not exceed the limit, at the histogram's resolution."""
    index = histogram.get_counts_array_index(int(limit_us * 1000))
    return int(_counts(histogram)[: index + 1].sum())


def recorded_us(histogram: HdrHistogram) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the middle of each bucket that has values, and its number of values."""
    counts = _counts(histogram)
    (indices,) = np.nonzero(counts)
    lowest = np.array([histogram.get_value_from_index(int(index)) for index in indices], float)
    highest = [histogram.get_highest_equivalent_value(int(value)) for value in lowest]
    return (lowest + (np.array(highest, float) + 1 - lowest) // 2) / 1000, counts[indices]


def _counts(histogram: HdrHistogram) -> NDArray[np.int64]:
    # The array of a decoded histogram ends with its last value.
    return np.ctypeslib.as_array(histogram.counts).astype(np.int64)
