"""Limits of shares and quantiles, against exact sums and against samples."""

from __future__ import annotations

import math
import random

import pytest

from nereid_scheduler.control.rollouts.intervals import (
    quantile_between,
    share_at_least,
    share_at_most,
)
from nereid_scheduler.core.measurements.fine_durations import BUCKETS, bucket_of


def at_most(count: int, total: int, share: float) -> float:
    """The probability of at most so many of `total`, term by term."""
    return math.fsum(
        math.comb(total, number) * share**number * (1 - share) ** (total - number)
        for number in range(count + 1)
    )


@pytest.mark.parametrize(("count", "total"), [(0, 20), (1, 20), (2, 300), (150, 300), (19, 20)])
@pytest.mark.parametrize("doubt", [0.05, 1e-6])
def test_limits_of_shares_are_exact(count: int, total: int, doubt: float) -> None:
    upper = share_at_most(count, total, doubt)
    assert at_most(count, total, upper) == pytest.approx(doubt, rel=1e-4)
    lower = share_at_least(count, total, doubt)
    if count:
        assert 1 - at_most(count - 1, total, lower) == pytest.approx(doubt, rel=1e-3)
    else:
        assert lower == 0.0


def test_limits_of_shares_at_the_ends() -> None:
    assert share_at_most(20, 20, 0.05) == 1.0
    assert share_at_most(0, 0, 0.05) == 1.0
    assert share_at_least(0, 0, 0.05) == 0.0
    assert share_at_least(20, 20, 0.05) == pytest.approx(0.05 ** (1 / 20))
    # Many requests: it converges.
    assert share_at_most(0, 10_000_000, 0.05) == pytest.approx(3e-7, rel=0.01)
    assert share_at_most(5_000_000, 10_000_000, 1e-6) == pytest.approx(0.50075, abs=1e-5)


def test_buckets_are_fine_and_cover_all_durations() -> None:
    assert [bucket_of(duration) for duration in (0, 1, 127, 128, 129, 130)] == [
        0, 1, 127, 128, 128, 129,
    ]  # fmt: skip
    assert bucket_of((1 << 47) - 1) == bucket_of(1 << 60) == BUCKETS - 1
    for duration in (150, 12_345, 9_876_543, 10**12):
        lower, upper = quantile_between(counts_of([duration] * 5000), 0.5, 0.05)
        assert lower <= duration < upper <= lower * 1.016 + 1


def counts_of(durations: list[int]) -> list[int]:
    counts = [0] * BUCKETS
    for duration in durations:
        counts[bucket_of(duration)] += 1
    return counts


def test_too_few_values_bound_no_quantile() -> None:
    assert quantile_between([0] * BUCKETS, 0.99, 0.05) == (0.0, math.inf)
    lower, upper = quantile_between(counts_of([1000] * 100), 0.99, 0.05)
    assert (lower > 0, upper) == (True, math.inf)
    assert quantile_between(counts_of([1000] * 3), 0.5, 0.01)[0] == 0.0


def test_quantiles_are_between_their_limits_as_often_as_promised() -> None:
    chance = random.Random(5)
    true = math.exp(2.3263478740 * 0.5) * 1e6
    outside = 0
    for _ in range(200):
        sample = [int(chance.lognormvariate(0, 0.5) * 1e6) for _ in range(1000)]
        lower, upper = quantile_between(counts_of(sample), 0.99, 0.05)
        outside += not lower <= true <= upper
    assert outside / 200 < 0.14
