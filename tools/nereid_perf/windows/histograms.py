"""Makes HdrHistograms of many values at once, because the library takes 1 us for each value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from hdrh.histogram import HdrHistogram

if TYPE_CHECKING:
    from numpy.typing import NDArray

# An hour; longer times count as an hour.
MAX_NS: Final = 3_600_000_000_000
_DIGITS: Final = 3


def histogram_of(values_ns: NDArray[np.int64]) -> HdrHistogram:
    """Return the histogram of values in ns; values below 1 ns count as 1 ns."""
    histogram = HdrHistogram(1, MAX_NS, _DIGITS)
    if not len(values_ns):
        return histogram
    values = np.clip(values_ns, 1, MAX_NS)
    # A double's exponent is the value's number of bits. This is exact below 2**53.
    bits = np.frexp((values | histogram.sub_bucket_mask).astype(np.float64))[1].astype(np.int64)
    half_bits = histogram.sub_bucket_half_count_magnitude
    buckets = bits - (half_bits + 1)
    places = ((buckets + 1) << half_bits) + (values >> buckets) - histogram.sub_bucket_half_count
    counts = np.bincount(places, minlength=histogram.counts_len)
    np.frombuffer(histogram.counts, dtype=np.int64)[:] += counts
    histogram.total_count = len(values)
    histogram.min_value = int(values.min())
    histogram.max_value = int(values.max())
    return histogram
