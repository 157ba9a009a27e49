"""Arguments of rollouts, strictly read."""

import pytest

from nereid.core.traffic.rollout_rules import (
    Rule,
    check_every,
    check_steps,
    parse_duration,
    parse_rules,
    parse_steps,
)


def test_rules() -> None:
    assert parse_rules("errors<0.1%  p99<1.1x p50<20ms difference<1e-3") == (
        Rule("errors<0.1%", "errors", 0.001, "%"),
        Rule("p99<1.1x", "p99", 1.1, "x"),
        Rule("p50<20ms", "p50", 20.0, "ms"),
        Rule("difference<1e-3", "difference", 1e-3, ""),
    )
    assert parse_rules("p95<2x")[0].quantile == 0.95


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected rules"),
        ("errors", "expected errors<N%"),
        ("errors>1%", "expected errors<N%"),
        ("errors <1%", "expected errors<N%"),
        ("errors<1", "errors has %"),
        ("errors<1x", "errors has %"),
        ("errors<0%", "between 0 and 1"),
        ("errors<100%", "between 0 and 1"),
        ("errors<-1%", "expected errors<N%"),
        ("errors<nan%", "expected errors<N%"),
        ("p99<1x", "between 1 and 1000"),
        ("p99<0.5x", "between 1 and 1000"),
        ("p99<1", "p99 has x or ms"),
        ("p90<1.1x", "expected errors<N%"),
        ("difference<1%", "difference has no unit"),
        ("difference<0", "between 0 and"),
        ("difference<1e999", "expected errors<N%"),
        ("p99<1.1x p99<2x", "p99 has two rules"),
        ("errors<1%;p99<2x", "expected errors<N%"),
        ("x" * 201, "at most 200 characters"),
    ],
)
def test_wrong_rules_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_rules(text)


def test_steps() -> None:
    assert parse_steps("1,10,50,100") == (1, 10, 50, 100)
    assert check_steps([1, 100]) == (1, 100)
    for text in (
        "",
        "10",
        "100",
        "10,10,100",
        "50,10,100",
        "0,100",
        "10, 100",
        "10,101",
        "-1,100",
        "a",
    ):
        with pytest.raises(ValueError, match="expected steps"):
            parse_steps(text)


def test_durations() -> None:
    assert [parse_duration(text) for text in ("30s", "5m", "1.5h")] == [30, 300, 5400]
    for text in ("", "5", "5 m", "-1s", "1d", "0s", "200h"):
        with pytest.raises(ValueError, match="expected a time"):
            parse_duration(text)
    assert check_every(1.5) == 1.5
