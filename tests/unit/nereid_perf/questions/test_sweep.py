from nereid_perf.measurement import LoadLevel, Measurement
from nereid_perf.questions.levels import parse_concurrency_range, parse_rate_range
from nereid_perf.questions.metrics import parse_metric
from nereid_perf.questions.question import Question, resolve
from nereid_perf.questions.sweep import Threshold, binary_search, repeat, sweep
from tests.support.measurements import measured

_TEN_MS = Threshold(parse_metric("p99"), 10_050)


def _server(level: LoadLevel) -> Measurement:
    """1 ms for each in flight."""
    return measured(level, [1000 * level.value] * 10)


def _values(question: Question[list[Measurement]]) -> list[float]:
    return [each.level.value for each in resolve(question, _server)]


def test_a_sweep_measures_all_levels() -> None:
    assert _values(sweep(parse_concurrency_range("1:8:*2"))) == [1, 2, 4, 8]


def test_a_sweep_ends_with_the_first_level_that_misses_the_threshold() -> None:
    assert _values(sweep(parse_concurrency_range("1:0:4"), _TEN_MS)) == [1, 5, 9, 13]


def test_rounds_take_the_levels_in_turns() -> None:
    assert _values(repeat(parse_concurrency_range("1,8"), 2)) == [1, 8, 1, 8]


def test_a_binary_search_comes_as_near_as_the_step() -> None:
    assert _values(binary_search(parse_concurrency_range("1:64"), _TEN_MS)) == [
        1,
        64,
        32,
        16,
        8,
        12,
        10,
        11,
    ]
    assert _values(binary_search(parse_rate_range("1:17:4"), _TEN_MS)) == [1, 17, 9, 13]


def test_a_binary_search_ends_at_an_end_that_decides_it() -> None:
    assert _values(binary_search(parse_concurrency_range("11:64"), _TEN_MS)) == [11]
    assert _values(binary_search(parse_concurrency_range("1:10"), _TEN_MS)) == [1, 10]
    assert _values(binary_search(parse_concurrency_range("4"), _TEN_MS)) == [4]


def test_a_level_without_responses_misses_the_threshold() -> None:
    assert not _TEN_MS.is_met(measured(LoadLevel("concurrency", 1), []))
