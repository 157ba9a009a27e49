"""What a level means to each worker."""

import numpy as np
import pytest

from nereid_perf.load.concurrency import Constant, Periodic
from nereid_perf.load.shape import LoadShape, arrivals_of, concurrency_of
from nereid_perf.measurement import LoadLevel


def _first(level: LoadLevel, shape: LoadShape, worker: int = 0, workers: int = 1) -> np.ndarray:
    blocks = arrivals_of(level, shape, seed=0, worker=worker, workers=workers)
    assert blocks is not None
    return next(blocks)


@pytest.mark.parametrize("kind", ["concurrency", "trace"])
def test_a_closed_loop_and_a_trace_have_no_schedule(kind: str) -> None:
    assert arrivals_of(LoadLevel(kind, 4), LoadShape(), seed=0, worker=0, workers=1) is None


def test_a_rate_is_split_between_workers() -> None:
    level = LoadLevel("rate", 100)
    assert _first(level, LoadShape(), 1, 2)[:3].tolist() == [10_000_000, 30_000_000, 50_000_000]


def test_a_ramp_ends_at_the_rate_of_the_level() -> None:
    times = _first(LoadLevel("rate", 100), LoadShape(ramp_from=50, ramp_s=2.0))
    assert np.searchsorted(times, 2_000_000_000) == pytest.approx(150, abs=1)


def test_bursts_leave_the_level_its_rate_between_them() -> None:
    shape = LoadShape(burst_rate=200, burst_s=1, burst_period_s=2)
    times = _first(LoadLevel("rate", 100), shape)
    counts = np.histogram(times, bins=[0, 10**9, 2 * 10**9])[0]
    assert counts.tolist() == pytest.approx([200, 100], abs=1)


def test_intervals_are_a_schedule_of_their_own() -> None:
    times = _first(LoadLevel("trace", 1.0), LoadShape(intervals_ns=(5, 7)))
    assert times[:3].tolist() == [5, 12, 17]


def test_concurrency_is_split_between_workers() -> None:
    level = LoadLevel("concurrency", 5)
    constants = [concurrency_of(level, LoadShape(), worker=each, workers=2) for each in (0, 1)]
    assert [type(each) for each in constants] == [Constant, Constant]
    assert [each.allowed for each in constants] == [3, 2]


def test_periodic_concurrency_grows_to_the_level() -> None:
    shape = LoadShape(periodic_from=1, periodic_step=2, requests_per_step=1)
    periodic = concurrency_of(LoadLevel("concurrency", 4), shape, worker=0, workers=1)
    assert isinstance(periodic, Periodic)
    allowed = []
    for _ in range(4):
        allowed.append(periodic.allowed)
        periodic.on_end()
    assert allowed == [1, 3, 4, 4]
