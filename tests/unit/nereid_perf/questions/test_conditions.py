import pytest

from nereid_perf.questions.comparison import Comparison, Ratio
from nereid_perf.questions.conditions import parse_condition, violations
from tests.support.measurements import concurrency, measured

_LEVELS = [measured(concurrency(n), [n * 1000.0] * 100) for n in (1, 30)]


def _lines(*texts: str, comparisons: tuple[Comparison, ...] = ()) -> list[str]:
    return violations([parse_condition(each) for each in texts], _LEVELS, comparisons)


def test_a_condition_that_holds_of_one_level() -> None:
    assert _lines("p99>20ms", "rate<1") == ["p99>20ms at concurrency 30: it is 30 ms"]


def test_each_sign() -> None:
    assert len(_lines("rate<=100")) == 2
    assert len(_lines("rate<100")) == 0
    assert len(_lines("rate >= 100/s")) == 2
    assert len(_lines("rate > 100")) == 0


def test_what_was_not_measured_cannot_pass() -> None:
    assert _lines("queue>1ms")[0] == "queue>1ms at concurrency 1: not measured"


def test_a_ratio_fails_by_the_near_end_of_its_interval() -> None:
    comparison = Comparison(
        concurrency(1),
        20,
        0.99,
        True,
        (Ratio("p99", 1, 1.1, 1.1, 1.06, 1.2), Ratio("rate", 1, 0.9, 0.9, None, None)),
    )
    assert _lines("p99_ratio>1.05", "p99_ratio>1.08", comparisons=(comparison,)) == [
        "p99_ratio>1.05: it is 1.100, 1.060 to 1.200"
    ]
    assert _lines("p99_ratio<1.3", comparisons=(comparison,)) == [
        "p99_ratio<1.3: it is 1.100, 1.060 to 1.200"
    ]
    assert _lines("rate_ratio<1", comparisons=(comparison,)) == []
    assert _lines("cpu_ratio>1", comparisons=(comparison,)) == ["cpu_ratio>1: not compared"]
    assert _lines("cpu_ratio>1") == ["cpu_ratio>1: nothing was compared"]


@pytest.mark.parametrize("text", ["p99", "p99=20ms", "p99>20", "what>1", "p99_ratio>5ms"])
def test_a_condition_that_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_condition(text)


def test_of_rounds_the_median_counts() -> None:
    rounds = [measured(concurrency(4), [ms * 1000.0]) for ms in (1, 50, 2)]
    assert violations([parse_condition("p99>20ms")], rounds) == []
    assert len(violations([parse_condition("p99>1.5ms")], rounds)) == 1
