"""Confidence limits of shares and of quantiles, exact for any distribution.

`doubt` is the probability that a limit is wrong: one-sided, for one look at the data.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from nereid_scheduler.core.measurements.fine_durations import bounds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BISECTIONS: Final = 40
# It converges within the root of the number of requests.
_MAX_TERMS: Final = 10_000
_TINY: Final = 1e-300
_PRECISION: Final = 1e-12


def share_at_most(count: int, total: int, doubt: float) -> float:
    """Return the upper limit of a share of which `count` of `total` were seen: Clopper-Pearson."""
    if count >= total:
        return 1.0
    return _solve(lambda share: _beta(share, count + 1, total - count) > 1 - doubt)


def share_at_least(count: int, total: int, doubt: float) -> float:
    """Return the lower limit of a share of which `count` of `total` were seen."""
    return 0.0 if count <= 0 else 1 - share_at_most(total - count, total, doubt)


def quantile_between(counts: Sequence[int], share: float, doubt: float) -> tuple[float, float]:
    """Return limits of a quantile in nanoseconds, from counts by bucket: order statistics.

    The number of values below the quantile is binomial. The upper limit is infinite without enough
    values.
    """
    total = sum(counts)
    if not total:
        return 0.0, math.inf
    # Ranks count from 1. The value of rank r is below the quantile if at least r values are.
    below = _first(total, lambda rank: _at_least(rank, total, share) <= 1 - doubt) - 1
    above = _first(total, lambda rank: _at_least(rank, total, share) <= doubt)
    lower = bounds_of(_bucket_of_rank(counts, below))[0] if below else 0.0
    upper = bounds_of(_bucket_of_rank(counts, above))[1] if above <= total else math.inf
    return lower, upper


def _bucket_of_rank(counts: Sequence[int], rank: int) -> int:
    return bisect_left(list(accumulate(counts)), rank)


def _first(total: int, holds: Callable[[int], bool]) -> int:
    """Return the first rank from 1 for which `holds` is true; total + 1 if there is none."""
    low, high = 1, total + 1
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _at_least(rank: int, total: int, share: float) -> float:
    """Return the probability that a binomial count is at least `rank`."""
    return 1.0 if rank <= 0 else _beta(share, rank, total - rank + 1)


def _solve(holds: Callable[[float], bool]) -> float:
    """Return the least share for which `holds` is true."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function for 0 < x < 1, by a continued fraction."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction by Lentz's method."""
    c, d = 1.0, _inverse(1 - (a + b) * x / (a + 1))
    value = d
    change, term = 0.0, 0
    while abs(change - 1) > _PRECISION and term < _MAX_TERMS:
        term += 1
        even = term * (b - term) * x / ((a + 2 * term - 1) * (a + 2 * term))
        d = _inverse(1 + even * d)
        c = _away_from_zero(1 + even / c)
        value *= c * d
        odd = -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1))
        d = _inverse(1 + odd * d)
        c = _away_from_zero(1 + odd / c)
        change = c * d
        value *= change
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _inverse(value: float) -> float:
    return 1 / _away_from_zero(value)
