"""When windows are enough."""

import pytest
from scipy import stats

from nereid_perf.windows.stability import (
    ConfidenceInterval,
    LastThree,
    StabilityRule,
    Window,
    _t95,
)


def _windows(*pairs: tuple[float, float]) -> list[Window]:
    return [Window(rate, latency) for rate, latency in pairs]


@pytest.mark.parametrize(
    ("pairs", "stable"),
    [
        ([(100, 5), (100, 5)], 0),
        ([(100, 5), (109, 5), (110, 5)], 3),
        ([(100, 5), (109, 5), (111, 5)], 0),
        ([(100, 5.0), (100, 5.5), (100, 5.1)], 3),
        ([(100, 5.0), (100, 5.6), (100, 5.1)], 0),
        # Only the last three count.
        ([(1, 1), (100, 5), (100, 5), (100, 5)], 3),
        ([(0, 0), (0, 0), (0, 0)], 0),
    ],
)
def test_the_last_three_have_to_be_within_ten_per_cent(
    pairs: list[tuple[float, float]], stable: int
) -> None:
    assert LastThree(10.0).stable_windows(_windows(*pairs)) == stable


def test_a_latency_above_the_limit_is_enough_to_know() -> None:
    rule = LastThree(10.0, max_latency=50)
    assert rule.stable_windows(_windows((100, 10), (80, 30), (50, 60))) == 3
    assert rule.stable_windows(_windows((100, 10), (80, 30), (50, 40))) == 0


def test_a_mean_is_known_when_its_interval_is_narrow() -> None:
    rule = ConfidenceInterval(5.0, least_windows=5)
    steady = [(100.0, 5.0), (101.0, 5.1), (99.0, 4.9), (100.0, 5.0)]
    assert rule.stable_windows(_windows(*steady)) == 0
    assert rule.stable_windows(_windows(*steady, (100.0, 5.0))) == 5
    assert rule.stable_windows(_windows(*steady, (150.0, 5.0))) == 0
    assert rule.stable_windows(_windows(*steady, (100.0, 9.0))) == 0


def test_the_interval_is_students() -> None:
    rule = ConfidenceInterval(10.0, least_windows=3)
    rates = [90.0, 100.0, 110.0]
    half = stats.t.ppf(0.975, 2) * 10 / 3**0.5
    assert half > 10
    assert rule.stable_windows([Window(rate, 1.0) for rate in rates]) == 0
    wide: StabilityRule = ConfidenceInterval(half * 1.02, least_windows=3)
    assert wide.stable_windows([Window(rate, 1.0) for rate in rates]) == 3


def test_nothing_that_came_is_never_stable() -> None:
    assert ConfidenceInterval(5.0).stable_windows([Window(0, 0)] * 9) == 0


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 10, 1000])
def test_the_quantile_of_t(freedom: int) -> None:
    assert _t95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.01)
