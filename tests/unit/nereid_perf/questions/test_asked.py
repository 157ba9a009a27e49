import pytest

from nereid.config.settings_reader import read_settings
from nereid_perf.measurement import LoadLevel, Measurement
from nereid_perf.questions.asked import Findings, ask, ask_comparison, ask_results
from nereid_perf.questions.comparison import Turn
from nereid_perf.questions.settings import QuestionSettings
from tests.support.measurements import measured


def _server(level: LoadLevel) -> Measurement:
    """A millisecond for each in flight, or above 100 per second."""
    ms = level.value if level.kind == "concurrency" else 1 + 50 * (level.value > 100)
    return measured(level, [1000 * ms] * 100, duration_s=100 / level.value)


def _settings(*argv: str) -> QuestionSettings:
    return read_settings(QuestionSettings, argv, {}, "nereid perf")


def _asked(*argv: str) -> Findings:
    return ask(_settings(*argv), _server)


def _levels(findings: Findings) -> list[float]:
    (measurements,) = findings.sides
    return [each.level.value for each in measurements]


@pytest.mark.parametrize(
    ("argv", "levels"),
    [
        ([], [1]),
        (["--concurrency-range=1:3"], [1, 2, 3]),
        (["--concurrency-range=1:3", "--rounds=2"], [1, 2, 3, 1, 2, 3]),
        (["--concurrency-range=1:0", "-l", "2.5"], [1, 2, 3]),
        (["--concurrency-range=1:9:2", "-l", "2.5", "--binary-search"], [1, 9, 5, 3]),
    ],
)
def test_levels_that_are_measured(argv: list[str], levels: list[float]) -> None:
    assert _levels(_asked(*argv)) == levels


def test_conditions_are_checked() -> None:
    found = _asked("--concurrency-range=1:3", "--fail-if=p99>2.5ms")
    assert found.violations == ("p99>2.5ms at concurrency 3: it is 3 ms",)


def test_the_highest_rate_and_its_conditions() -> None:
    found = _asked("--find-max-rate", "--slo=p99=20ms", "--fail-if=rate<99", "--fail-if=rate<120")
    assert found.max_rate is not None
    assert found.max_rate.rate == 100
    assert found.max_rate.measurements == found.sides[0]
    assert found.violations == ("rate<120 at rate 100: it is 100/s",)


def test_no_rate_fails_each_condition() -> None:
    found = _asked("--find-max-rate", "--slo=p99=1us", "--fail-if=rate<99")
    assert found.violations == ("rate<99: no rate keeps p99=1us",)
    assert _asked("--find-max-rate", "--slo=p99=1us").violations == ()


def _turn(turn: Turn) -> Measurement:
    return measured(turn.level, [1000 * (1 + turn.side)] * 10)


def test_a_comparison() -> None:
    settings = _settings("--concurrency-range=4", "--rounds=8", "--fail-if=p50_ratio>1.9")
    found = ask_comparison(settings, _turn)
    assert [len(side) for side in found.sides] == [8, 8]
    assert len(found.comparisons) == 1
    assert found.violations == ("p50_ratio>1.9: it is 2.000, 2.000 to 2.000",)


def test_a_comparison_s_plain_conditions_are_about_b() -> None:
    found = ask_comparison(_settings("--fail-if=p50>1.5ms"), _turn)
    assert found.violations == ("p50>1.5ms at concurrency 1: it is 2 ms",)
    assert found.comparisons[0].rounds == 20


def test_two_results() -> None:
    a = [_turn(Turn(0, LoadLevel("rate", 5)))] * 9
    b = [_turn(Turn(1, LoadLevel("rate", 5)))] * 9
    found = ask_results(_settings(), a, b)
    assert not found.comparisons[0].is_paired
    assert [each.outcome for each in found.comparisons[0].ratios[1:3]] == ["different"] * 2
