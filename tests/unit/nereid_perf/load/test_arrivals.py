"""Schedules of open loops."""

from itertools import islice

import numpy as np
import pytest

from nereid_perf.load.arrivals import (
    Bursts,
    Distribution,
    Profile,
    Ramp,
    Steady,
    arrivals,
    every_nth,
    repeated_intervals,
)


def _times_s(
    profile: Profile,
    distribution: Distribution = "constant",
    number: int = 10_240,
    **options: float,
) -> np.ndarray:
    blocks = arrivals(profile, distribution, seed=3, **options)
    return np.concatenate(list(islice(blocks, -(-number // 1024))))[:number] / 1e9


def test_a_constant_rate_has_equal_gaps_and_never_drifts() -> None:
    times = _times_s(Steady(300), number=1024 * 50)
    assert times[0] == 0
    assert np.allclose(np.diff(times), 1 / 300, atol=2e-9)
    assert times[30_000] == pytest.approx(100.0, abs=1e-8)


@pytest.mark.parametrize(
    ("distribution", "variation"), [("poisson", 1.0), ("gamma", 1.0), ("gamma", 3.0)]
)
def test_random_gaps_have_the_mean_and_the_variation_that_was_asked_for(
    distribution: Distribution, variation: float
) -> None:
    times = _times_s(Steady(200), distribution, 102_400, gamma_variation=variation)
    gaps = np.diff(times)
    assert np.all(gaps >= 0)
    assert gaps.mean() == pytest.approx(1 / 200, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_the_same_seed_gives_the_same_times_and_another_one_others() -> None:
    first, again, other = (
        next(arrivals(Steady(10), "poisson", seed=seed)).tolist() for seed in (1, 1, 2)
    )
    assert first == again != other


def test_blocks_go_on_where_the_last_one_ended() -> None:
    one, two = islice(arrivals(Steady(10), "poisson", seed=1), 2)
    assert two[0] > one[-1]


@pytest.mark.parametrize(("first", "last"), [(0.0, 100.0), (100.0, 20.0), (50.0, 50.0)])
def test_a_ramp_changes_its_rate_evenly_and_then_keeps_it(first: float, last: float) -> None:
    times = _times_s(Ramp(first, last, 10.0), number=5000)
    # Requests until then: the area below the rate.
    at_5s, at_10s = np.searchsorted(times, (5.0, 10.0))
    assert at_5s == pytest.approx(5 * (first + (first + last) / 2) / 2, abs=1.01)
    assert at_10s == pytest.approx(5 * (first + last), abs=1.01)
    assert np.allclose(np.diff(times[at_10s + 1 :]), 1 / last)


def test_bursts_begin_each_period() -> None:
    times = _times_s(Bursts(10, 100, 0.5, 2.0), number=1024)
    in_period = 100 * 0.5 + 10 * 1.5
    assert np.searchsorted(times, 0.5) == pytest.approx(50, abs=1)
    assert np.searchsorted(times, 2.0) == pytest.approx(in_period, abs=1)
    assert np.searchsorted(times, 2.5) == pytest.approx(in_period + 50, abs=1)


def test_between_bursts_there_may_be_silence() -> None:
    times = _times_s(Bursts(0, 100, 0.5, 2.0), number=1000)
    assert np.all(times % 2.0 <= 0.5)


def test_intervals_are_repeated() -> None:
    times = np.concatenate(list(islice(repeated_intervals([10, 30]), 2)))
    assert times[:5].tolist() == [10, 40, 50, 80, 90]
    assert np.diff(times).tolist() == [30, 10] * (len(times) // 2 - 1) + [30]


def test_a_long_list_of_intervals_is_one_block() -> None:
    gaps = list(range(1, 3001))
    one, two = islice(repeated_intervals(gaps), 2)
    assert len(one) == 3000
    assert two[0] == one[-1] + 1


@pytest.mark.parametrize("workers", [1, 3, 5000])
def test_workers_share_a_schedule_without_gap_or_overlap(workers: int) -> None:
    blocks = list(islice(arrivals(Steady(10), "poisson", seed=1), 8))
    whole = np.concatenate(blocks)
    shares = [
        np.concatenate(list(every_nth(iter(blocks), each, workers))) for each in range(workers)
    ]
    assert sorted(np.concatenate(shares).tolist()) == whole.tolist()
    assert shares[0].tolist() == whole[::workers].tolist()
