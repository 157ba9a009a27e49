"""Fine buckets of durations, by which quantiles of two versions can be compared within percents."""

from __future__ import annotations

from typing import Final

# So many bits of a duration count: each doubling has 64 buckets, of 0.8 to 1.6 % each.
_BITS: Final = 6
# Bits of the largest duration in nanoseconds, more than a day.
_LARGEST: Final = 47
BUCKETS: Final = ((_LARGEST - _BITS - 1) << _BITS) + (1 << _BITS + 1)


def bucket_of(duration_ns: int) -> int:
    """Return the bucket of a duration."""
    shift = duration_ns.bit_length() - _BITS - 1
    if shift <= 0:
        return max(0, duration_ns)
    return min(BUCKETS - 1, (shift << _BITS) + (duration_ns >> shift))


def bounds_of(bucket: int) -> tuple[float, float]:
    """Return the least duration in a bucket, and the least beyond it, in nanoseconds."""
    shift = max(0, (bucket >> _BITS) - 1)
    first = bucket - (shift << _BITS)
    return float(first << shift), float(first + 1 << shift)
