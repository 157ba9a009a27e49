"""Figures of an overloaded mesh, from what clients saw."""

from __future__ import annotations

import math

import pytest

from benchmarks.overload.clients import OVERDUE, REFUSED, SERVED, Outcome
from benchmarks.overload.figures import Phase, figures_of, quantile_ms
from benchmarks.overload.plot import draw, points

_PHASES = (
    Phase("warm", 1.0, 0.0, 10.0),
    Phase("overload", 10.0, 10.0, 20.0),
    Phase("after", 0.5, 20.0, 30.0),
)


def outcomes() -> list[Outcome]:
    """10 requests a second are served; under overload 90 more are refused."""
    served = [Outcome(number / 10, 0.05, number % 5 == 0, SERVED) for number in range(200)]
    refused = [Outcome(10 + number / 90, 0.01, False, REFUSED, True) for number in range(900)]
    # For a second after the overload nobody is served in time.
    overdue = [Outcome(20 + number / 5, 2.0, False, OVERDUE) for number in range(5)]
    return (
        served
        + refused
        + overdue
        + [Outcome(21 + number / 5, 0.05, False, SERVED) for number in range(45)]
    )


def test_goodput_is_by_the_capacity_and_latency_by_priority() -> None:
    figures = figures_of(outcomes(), _PHASES, 10.0)
    assert figures["capacity_per_s"] == 10.0
    overload = figures["phases"]["overload"]
    assert overload["offered_per_capacity"] == 10.0
    assert overload["goodput_per_capacity"] == 1.0
    assert overload["kinds"] == {SERVED: 100, REFUSED: 900}
    assert overload["with_retry_hint"] == 900
    assert overload["served_part_of_urgent"] == 1.0
    assert overload["p99_ms"] == {"urgent": 50.0, "ordinary": 50.0}
    assert figures["phases"]["warm"]["p99_ms_of_refusals"] is None
    assert figures["phases"]["after"]["served_part_of_urgent"] is None


def test_the_mesh_has_recovered_once_nearly_all_that_follows_is_served() -> None:
    assert 0.4 <= figures_of(outcomes(), _PHASES, 10.0)["recovery_s"] <= 1.0
    never = [Outcome(20 + number / 10, 2.0, False, OVERDUE) for number in range(100)]
    assert figures_of(never, _PHASES, 10.0)["recovery_s"] is None


def test_quantiles_of_nothing_are_unknown() -> None:
    assert quantile_ms([], 0.99) is None
    assert quantile_ms([0.1, 0.2, 0.3], 0.5) == 200.0


def test_the_plot_is_of_all_runs_and_has_gaps_where_nothing_was_measured() -> None:
    seconds = [
        {"second": second, "offered_per_capacity": 1.0, "goodput_per_capacity": 1.0, "p99_ms": p99}
        for second, p99 in ((0, 20.0), (1, None), (9, 30.0))
    ]
    run = {"seconds": seconds}
    assert points(run, "p99_ms") == [
        (0, 20.0),
        (9, pytest.approx(math.nan, nan_ok=True)),
        (9, 30.0),
    ]
    assert draw({"--admission=none": run, "--admission=codel": run}) != draw({"only": run})
