import pytest

from nereid_perf.measurement import Measurement
from nereid_perf.questions.knee import find_knee
from nereid_perf.questions.metrics import parse_metric
from tests.support.measurements import concurrency, measured

_P50 = parse_metric("p50")


def _server(in_flight: int, capacity: int = 8) -> Measurement:
    """Takes 1 ms for each of up to so many at once; more wait."""
    rate = min(in_flight, capacity) * 1000
    return measured(concurrency(in_flight), [1e6 * in_flight / rate] * rate)


def test_the_knee_is_where_capacity_is_first_used_up() -> None:
    knee = find_knee([_server(n) for n in (1, 2, 4, 8, 16, 32)], _P50)
    assert knee is not None
    assert knee.level == concurrency(8)
    assert knee.rate == 8000
    assert knee.latency_us == pytest.approx(1000, rel=2e-3)
    assert knee.is_inside


def test_the_knee_does_not_move_when_the_range_grows() -> None:
    knee = find_knee([_server(n) for n in (4, 8, 16, 32, 64, 128, 256)], _P50)
    assert knee is not None
    assert knee.level == concurrency(8)


def test_a_knee_at_an_end_of_the_range_may_be_beyond_it() -> None:
    knee = find_knee([_server(n) for n in (1, 2, 4)], _P50)
    assert knee is not None
    assert knee.level == concurrency(4)
    assert not knee.is_inside


def test_of_equals_the_lower_level() -> None:
    levels = [measured(concurrency(n), [1000] * 100) for n in (1, 2, 3)]
    knee = find_knee(levels, _P50)
    assert knee is not None
    assert knee.level == concurrency(1)


def test_levels_that_fail_are_past_the_knee() -> None:
    failing = measured(concurrency(16), [10] * 10_000, failures={"UNAVAILABLE": 500})
    knee = find_knee([*(_server(n) for n in (2, 4, 8)), failing], _P50)
    assert knee is not None
    assert knee.level == concurrency(8)


def test_no_knee_of_two_levels_nor_of_nothing() -> None:
    assert find_knee([_server(1), _server(2), _server(2)], _P50) is None
    assert find_knee([measured(concurrency(n), []) for n in (1, 2, 3)], _P50) is None
