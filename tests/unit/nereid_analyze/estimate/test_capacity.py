import pytest

from nereid_analyze.estimate.batch_times import BatchTimes
from nereid_analyze.estimate.capacity import Capacity, filling_concurrency
from nereid_analyze.space.candidate import INSTANCES, MAX_BATCH, Candidate
from nereid_analyze.space.defaults import ModelDefaults

_TIMES = {"m": BatchTimes(100, 10, 0.05, 4)}
_DEFAULTS = {"m": ModelDefaults(max_batch=8)}


def _candidate(instances: int, batch: int) -> Candidate:
    return Candidate((("m", INSTANCES, instances), ("m", MAX_BATCH, batch)))


def test_the_rate_is_that_of_full_batches() -> None:
    capacity = Capacity(_TIMES, _DEFAULTS, sharing=0.0)
    assert capacity.rate(_candidate(1, 10)) == pytest.approx(10 / 200e-6)
    assert capacity.rate(_candidate(2, 10)) == pytest.approx(20 / 200e-6)
    assert capacity.rate(Candidate()) == pytest.approx(8 / 180e-6)


def test_instances_that_share_all_are_as_one() -> None:
    capacity = Capacity(_TIMES, _DEFAULTS, sharing=1.0)
    assert capacity.rate(_candidate(4, 10)) == pytest.approx(capacity.rate(_candidate(1, 10)))


def test_a_target_bounds_the_batch() -> None:
    free = Capacity(_TIMES, _DEFAULTS, target_us=100_000, sharing=0.0)
    tight = Capacity(_TIMES, _DEFAULTS, target_us=400, sharing=0.0)
    # Two batches within 400 us are of 10 rows each.
    assert tight.rate(_candidate(1, 64)) == pytest.approx(tight.rate(_candidate(1, 10)))
    assert free.rate(_candidate(1, 64)) > free.rate(_candidate(1, 10))


def test_a_target_below_a_single_row_leaves_next_to_nothing() -> None:
    capacity = Capacity(_TIMES, _DEFAULTS, target_us=100, sharing=0.0)
    assert capacity.rate(_candidate(1, 1)) < 0.85 / 110e-6


@pytest.mark.parametrize(("sharing", "front_us"), [(0.0, 0.0), (0.3, 20.0), (0.8, 5.0)])
def test_front_and_sharing_follow_from_measured_rates(sharing: float, front_us: float) -> None:
    true = Capacity(_TIMES, _DEFAULTS, None, front_us, sharing)
    candidates = [_candidate(n, b) for n in (1, 2, 4) for b in (1, 8, 64)]
    fitted = Capacity(_TIMES, _DEFAULTS).fitted([(each, true.rate(each)) for each in candidates])
    for each in candidates:
        assert fitted.rate(each) == pytest.approx(true.rate(each), rel=0.15)


def test_the_slowest_model_is_the_rate() -> None:
    times = {"a": BatchTimes(0, 10, 0, 2), "b": BatchTimes(0, 100, 0, 2)}
    capacity = Capacity(times, {"a": ModelDefaults(), "b": ModelDefaults()}, sharing=0.0)
    assert capacity.rate(Candidate()) == pytest.approx(1 / 100e-6)


def test_enough_in_flight_for_all_instances() -> None:
    assert filling_concurrency(_candidate(3, 16), _DEFAULTS) == 96
    assert filling_concurrency(Candidate(), _DEFAULTS) == 16
