import json
from typing import Any

import pytest

from nereid_perf.output import charts
from nereid_perf.output.page import named_servers
from tests.support import perf_results
from tests.support.measurements import concurrency, measured, rate

_TWO = {"a": perf_results.sweep().servers[0], "b": perf_results.sweep().servers[0]}
_ONE = {"a": _TWO["a"]}


def _names(chart: dict[str, Any] | None) -> list[str]:
    assert chart is not None
    assert json.loads(json.dumps(chart)) == chart
    return [each["name"] for each in chart["data"]]


def test_the_curve_of_one_server() -> None:
    chart = charts.curve(_ONE, 99)
    assert _names(chart) == ["p99", "p50", "knee"]
    assert chart is not None
    assert chart["data"][0]["x"][:4] == [500, 1000, 2000, 4000]
    assert chart["data"][2]["x"] == [4000]


def test_the_curves_of_two() -> None:
    assert _names(charts.curve(_TWO, 95)) == [
        "a p95",
        "a p50",
        "a knee",
        "b p95",
        "b p50",
        "b knee",
    ]


def test_a_curve_without_a_knee() -> None:
    two = perf_results.server(measured(rate(1)), measured(rate(2), [1000, 1000]))
    assert _names(charts.curve({"a": two}, 99)) == ["p99", "p50"]


def test_one_level_is_no_curve() -> None:
    assert charts.curve({"a": perf_results.server(measured(rate(1)))}, 99) is None
    assert charts.curve({}, 99) is None


def test_percentiles_and_histogram_have_a_line_for_each_level() -> None:
    labels = [f"{2**n} in flight" for n in range(6)]
    assert _names(charts.percentiles(_ONE, 99)) == labels
    assert _names(charts.histogram(_ONE, 99)) == labels


def test_of_several_servers_three_levels_each() -> None:
    assert _names(charts.percentiles(_TWO, 99)) == [
        f"{name}: {n} in flight" for name in "ab" for n in (1, 8, 32)
    ]
    single = {name: perf_results.server(measured(concurrency(2))) for name in "ab"}
    assert _names(charts.histogram(single, 99)) == ["a: 2 in flight", "b: 2 in flight"]
    empty = {"a": perf_results.server(), "b": perf_results.server()}
    assert charts.percentiles(empty, 99) is None


def test_of_many_levels_the_legend_has_those_that_are_not_drawn() -> None:
    many = perf_results.server(*(measured(concurrency(n)) for n in range(1, 31)))
    chart = charts.percentiles({"a": many}, 99)
    assert len(_names(chart)) == 30
    assert chart is not None
    drawn = [each["name"] for each in chart["data"] if each.get("visible") != "legendonly"]
    assert len(drawn) == 8
    assert (drawn[0], drawn[-1]) == ("1 in flight", "30 in flight")


def test_ticks_of_percentiles_end_where_requests_do() -> None:
    chart = charts.percentiles({"a": perf_results.server(measured(rate(1), [1000] * 150))}, 99)
    assert chart is not None
    assert chart["layout"]["xaxis"]["ticktext"] == ["0", "50", "90", "99"]


def test_the_server_s_split_is_stacked() -> None:
    assert _names(charts.server_split(_ONE, 99)) == [
        "Server Queue",
        "Server Compute Input",
        "Server Compute Infer",
        "Server Compute Output",
        "Network and client",
    ]
    two = charts.server_split(_TWO, 99)
    assert two is not None
    names, labels = two["data"][0]["x"]
    assert names == ["a"] * 6 + ["b"] * 6
    assert labels[0] == "1 in flight"


def test_nothing_measured_has_no_charts() -> None:
    none = {"a": perf_results.server()}
    assert charts.histogram(none, 99) is None
    assert charts.server_split(none, 99) is None


def test_ratios_with_their_intervals() -> None:
    (comparison,) = perf_results.comparison().comparisons
    chart = charts.ratios(comparison)
    (trace,) = chart["data"]
    assert trace["y"] == ["cpu", "p99", "p50", "rate"]
    for x, up, down, ratio in zip(
        trace["x"],
        trace["error_x"]["array"],
        trace["error_x"]["arrayminus"],
        reversed(comparison.ratios),
        strict=True,
    ):
        assert (x - down, x + up) == pytest.approx((ratio.low, ratio.high))


def test_a_comparison_s_servers_are_a_and_b() -> None:
    results = {"x": perf_results.comparison(), "y": perf_results.sweep()}
    assert list(named_servers(results)) == ["x A", "x B", "y"]
    assert list(named_servers({"x": perf_results.comparison()})) == ["A", "B"]
    assert list(named_servers({"x": perf_results.sweep()})) == ["x"]
