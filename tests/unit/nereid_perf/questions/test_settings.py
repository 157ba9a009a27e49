import pytest

from nereid.config.settings_reader import read_settings, settings_argv
from nereid_perf.questions.settings import QuestionSettings
from tests.support.measurements import concurrency, rate


def _read(*argv: str) -> QuestionSettings:
    return read_settings(QuestionSettings, argv, {}, "nereid perf")


def test_without_flags_one_request_is_in_flight() -> None:
    settings = _read()
    assert list(settings.levels.levels()) == [concurrency(1)]
    assert settings.threshold is None
    assert settings.objective is None
    assert settings.conditions == []
    assert settings.comparison_errors() == []


def test_flags_become_what_they_say() -> None:
    settings = _read(
        "--request-rate-range=10:20:10",
        "--percentile=95",
        "-l",
        "5",
        "--slo=p99=20ms",
        "--fail-if=p99>20ms",
        "--fail-if=rate<10",
        "--max-rate-votes=3/5",
        "--max-rate-start=7",
    )
    assert list(settings.levels.levels()) == [rate(10), rate(20)]
    assert settings.threshold is not None
    assert (settings.threshold.metric.name, settings.threshold.most_us) == ("p95", 5000)
    assert settings.objective is not None
    assert [each.text for each in settings.conditions] == ["p99>20ms", "rate<10"]
    rules = settings.search_rules
    assert (rules.needed, rules.votes, rules.start, rules.precision) == (3, 5, 7, 0.02)
    assert _read(*settings_argv(settings)) == settings


def test_without_a_percentile_the_mean_has_the_threshold() -> None:
    threshold = _read("-l", "5").threshold
    assert threshold is not None
    assert threshold.metric.name == "avg"


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--concurrency-range=1:2", "--request-rate-range=1:2"], "give one of them"),
        (["--binary-search", "--concurrency-range=1:2"], "and --latency-threshold"),
        (["--binary-search", "--concurrency-range=1:0", "-l", "5"], "a range with an end"),
        (["--binary-search", "--concurrency-range=1:8:*2", "-l", "5"], "start:end:step"),
        (["--concurrency-range=1:0"], "needs --latency-threshold"),
        (["--rounds=2", "-l", "5"], "--rounds measures all levels"),
        (["--find-max-rate"], "needs --slo"),
        (["--find-max-rate", "--slo=p99=1ms", "--concurrency-range=2"], "give no range"),
        (["--slo=p99"], "expected a metric and its limit"),
        (["--percentile=200"], "is no metric"),
        (["--fail-if=p99"], "expected a metric, <"),
        (["--max-rate-votes=3/2"], "such as 2/3"),
        (["--max-rate-votes=two"], "such as 2/3"),
        (["--max-rate-precision=0"], "expected a number from 0.001 to 1"),
        (["--confidence=x"], "expected a number"),
    ],
)
def test_what_is_refused(argv: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _read(*argv)
    assert error in capsys.readouterr().err


def test_what_compare_refuses() -> None:
    assert "8 rounds at least" in _read("--rounds=7").comparison_errors()[0]
    assert _read("--rounds=8").comparison_errors() == []
    assert "no threshold" in _read("-l", "5").comparison_errors()[0]
    search = _read("--find-max-rate", "--slo=p99=1ms").comparison_errors()
    assert "two questions" in search[0]
