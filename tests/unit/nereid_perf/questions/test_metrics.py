import pytest

from nereid_perf.questions.metrics import (
    Unit,
    attempts,
    error_share,
    parse_metric,
    parse_quantity,
    rate_text,
    time_text,
)
from tests.support.measurements import concurrency, measured, split

_HUNDRED = [10.0 * n for n in range(1, 101)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("p50", 500),
        ("p99", 990),
        ("p99.9", 1000),
        ("p100", 1000),
        ("avg", 505),
        ("max", 1000),
        ("service_p50", 500),
        ("ttft", 9.9),
        ("ttft_p50", 5),
        ("itl_max", 3),
        ("itl", 3),
        ("rate", 50),
        ("responses", 50),
        ("errors", 0.2),
        ("cpu", 20),
        ("queue", 10),
        ("compute_input", 1),
        ("compute_infer", 100),
        ("compute_output", 2),
    ],
)
def test_a_metric_s_value(name: str, expected: float) -> None:
    measurement = measured(
        concurrency(1),
        _HUNDRED,
        first_us=[each / 100 for each in _HUNDRED],
        between_us=[1, 2, 3],
        duration_s=2,
        failures={"UNAVAILABLE": 25},
        server=(split(), split("other", queue_us=7)),
    )
    assert parse_metric(name).value(measurement) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("name", ["p99", "avg", "itl_max", "queue"])
def test_what_was_not_measured_has_no_value(name: str) -> None:
    assert parse_metric(name).value(measured(concurrency(1), [])) is None


@pytest.mark.parametrize("name", ["p0", "p101", "p", "latency", "ttft_", "service", ""])
def test_a_name_that_is_no_metric(name: str) -> None:
    with pytest.raises(ValueError, match=r"is no metric|above 0"):
        parse_metric(name)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("20ms", Unit.MICROSECONDS, 20_000),
        (".5 s", Unit.MICROSECONDS, 500_000),
        ("100ns", Unit.MICROSECONDS, 0.1),
        ("7us", Unit.MICROSECONDS, 7),
        ("1%", Unit.SHARE, 0.01),
        ("1000", Unit.PER_SECOND, 1000),
        ("1000/s", Unit.PER_SECOND, 1000),
    ],
)
def test_a_quantity(text: str, unit: Unit, value: float) -> None:
    assert parse_quantity(text, unit) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "unit", "error"),
    [
        ("20", Unit.MICROSECONDS, "a time needs a unit: 20ms"),
        ("20%", Unit.MICROSECONDS, "a time needs a unit"),
        ("0.1", Unit.SHARE, "a share needs its unit: 0.1%"),
        ("5ms", Unit.PER_SECOND, "expected a number per second"),
        ("fast", Unit.PER_SECOND, "is no quantity"),
        ("-1", Unit.PER_SECOND, "is no quantity"),
    ],
)
def test_a_quantity_that_is_refused(text: str, unit: Unit, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_quantity(text, unit)


def test_failed_requests_are_attempts() -> None:
    measurement = measured(concurrency(1), [1, 2, 3], failures={"a": 1, "b": 1})
    assert attempts(measurement) == 5
    assert error_share(measurement) == pytest.approx(0.4)
    assert error_share(measured(concurrency(1), [])) == 0


def test_values_as_text() -> None:
    assert [time_text(us) for us in (0, 0.5, 12.34, 999, 1234, 123_456, 2e6)] == [
        "0 us",
        "0.5 us",
        "12.3 us",
        "999 us",
        "1.23 ms",
        "123 ms",
        "2 s",
    ]
    assert [rate_text(each) for each in (1.5, 99.96, 12345.6)] == ["1.5/s", "100/s", "12346/s"]
    assert parse_metric("errors").text(0.0123) == "1.23 %"
    assert parse_metric("rate").text(10) == "10/s"
    assert parse_metric("p50").text(10) == "10 us"
