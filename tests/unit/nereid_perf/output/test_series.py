import pytest

from nereid_perf.measurement import LoadLevel
from nereid_perf.output.series import (
    REST,
    histogram_shares,
    level_figures,
    level_label,
    percentile_curve,
)
from tests.support.measurements import concurrency, measured, rate, split
from tests.support.perf_results import server


def test_rounds_of_a_level_are_one_point() -> None:
    rounds = [measured(concurrency(2), [1000.0 * n] * n) for n in (1, 2, 9)]
    (found,) = level_figures(server(*rounds), 99)
    assert (found.rounds, found.rate) == (3, 2)
    assert found.p50_us == pytest.approx(2000, rel=1e-3)
    assert found.counts.tolist() == [1, 2, 9]
    assert found.phases_us == {}


def test_levels_by_load_without_those_where_nothing_ended_well() -> None:
    levels = [measured(rate(n)) for n in (5, 1)]
    found = level_figures(server(*levels, measured(rate(9), [])), 99)
    assert [each.label for each in found] == ["1/s", "5/s"]
    assert level_label(LoadLevel("trace", 1)) == "trace"
    assert level_label(concurrency(4)) == "4 in flight"


def test_phases_and_the_rest_are_the_client_s_mean() -> None:
    level = measured(concurrency(1), [500], server=(split(cache_hits=1, cache_hit_us=7.0),))
    (found,) = level_figures(server(level), 99)
    assert found.phases_us["Server Cache Hit"] == 7
    assert found.phases_us["Server Compute Infer"] == 100
    assert sum(found.phases_us.values()) == pytest.approx(500, rel=1e-3)
    assert found.phases_us[REST] == pytest.approx(380, rel=1e-2)


def test_percentiles_end_with_what_so_many_requests_can_say() -> None:
    (found,) = level_figures(server(measured(rate(1), [10.0 * n for n in range(1, 101)])), 99)
    ranks, values = percentile_curve(found)
    assert ranks[0] == 0
    assert ranks[-1] == pytest.approx(99)
    assert values[ranks.index(50)] == pytest.approx(500, rel=1e-3)
    assert values[-1] == pytest.approx(990, rel=1e-3)
    assert values == sorted(values)


def test_shares_of_a_histogram_are_all_requests() -> None:
    series = level_figures(server(measured(rate(1), [1, 10]), measured(rate(2), [1e5])), 99)
    edges, shares = histogram_shares(series, bins=10)
    assert len(edges) == 11
    assert edges[0] < 1
    assert edges[-1] > 1e5
    assert [sum(each) for each in shares] == pytest.approx([1, 1])
    assert sorted(shares[1]) == pytest.approx([0] * 9 + [1])
