import pytest

from nereid_perf.questions.slo import parse_slo
from tests.support.measurements import measured, rate

_HUNDRED_MS = [1000.0 * n for n in range(1, 101)]


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("p99=99.5ms", True),
        ("p99=98ms", False),
        ("p50=50.1ms,p99=99.5ms", True),
        ("p50=40ms,p99=99.5ms", False),
        ("max=101ms", True),
        ("max=99ms", False),
        ("avg=51ms", True),
        ("avg=50ms", False),
        ("ttft=1ms", True),
        ("ttft_p50=0.4ms", False),
        ("itl=3ms", True),
        ("itl=1ms", False),
        ("errors=0%", True),
    ],
)
def test_limits(text: str, is_met: bool) -> None:
    measurement = measured(
        rate(100),
        _HUNDRED_MS,
        first_us=[each / 100 for each in _HUNDRED_MS],
        between_us=[1000, 2000],
    )
    assert parse_slo(text).is_met(measurement) is is_met


def test_a_failed_request_kept_no_limit() -> None:
    failing = measured(rate(100), [1000] * 98, failures={"UNAVAILABLE": 2})
    assert not parse_slo("p99=20ms").is_met(failing)
    assert parse_slo("p95=20ms").is_met(failing)
    assert not parse_slo("errors=1%").is_met(failing)


def test_nothing_measured_keeps_no_limit() -> None:
    nothing = measured(rate(100), [])
    assert not parse_slo("p99=20ms").is_met(nothing)
    assert not parse_slo("avg=20ms").is_met(nothing)
    assert parse_slo("itl=20ms").is_met(measured(rate(1)))


def test_goodput_is_what_keeps_the_limit() -> None:
    measurement = measured(rate(100), _HUNDRED_MS, duration_s=2, failures={"UNAVAILABLE": 5})
    assert parse_slo("p99=80.1ms").goodput(measurement) == 40


def test_goodput_under_several_limits_is_the_least_that_it_can_be() -> None:
    measurement = measured(rate(100), _HUNDRED_MS, first_us=_HUNDRED_MS, between_us=[1e6])
    assert parse_slo("p50=80.1ms,ttft=90.1ms").goodput(measurement) == 70
    assert parse_slo("p50=10.1ms,ttft=20.1ms").goodput(measurement) == 0
    # Limits of no single request.
    assert parse_slo("avg=1ms,errors=0%,itl=1ms").goodput(measurement) == 100


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("p99", "expected a metric and its limit"),
        ("p99=20", "a time needs a unit"),
        ("rate=100", "is what is searched for"),
        ("speed=1ms", "is no metric"),
        ("", "expected a metric"),
    ],
)
def test_an_slo_that_is_refused(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_slo(text)
