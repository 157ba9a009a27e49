"""The page begins with how fast the servers are; the chart has each of them."""

import pytest

from benchmarks.figures import page
from benchmarks.figures.samples import BARE, NO_PROTOCOL, Cell, Sample, Samples

ABOUT = {
    "date": "2026-01-01",
    "commit": "c0ffee",
    "cpu": "CPU",
    "cores": 2,
    "python": "3.11",
    "onnxruntime": {"nereid": "1"},
    "rounds": 1,
    "seconds": 1,
    "nereid_trees": [],
}


def sample(rate: float) -> list[Sample]:
    return [Sample(rate, 500.0, 2000.0, {"server": 10.0})]


@pytest.fixture
def samples() -> Samples:
    rates = {"nereid": (100, 900), "triton-native": (120, 600), "mlserver": (10, 30)}
    return {
        **{
            Cell("mlp", peer, "grpc", load): sample(rate)
            for peer, each in rates.items()
            for load, rate in zip((1, 64), each, strict=True)
        },
        Cell("mlp", BARE, NO_PROTOCOL, 64): sample(5000),
    }


def test_the_page_begins_with_one_table_of_all_servers(samples: Samples) -> None:
    beginning, _, rest = page.page(samples, ABOUT).partition("## Measure it yourself")
    assert "| Nereid | 100 (2.0) | 900 (2.0) |" in beginning
    assert "| MLServer | 10.0 (2.0) | 30.0 (2.0) |" in beginning
    assert "without a server: 5,000" in beginning
    assert rest.index("## All figures") < rest.index("## Aims of the project")


def test_charts_have_the_servers_at_the_highest_load_fastest_first(samples: Samples) -> None:
    charts = page.charts(samples, ABOUT)
    assert sorted(charts) == ["speed-dark.svg", "speed-light.svg"]
    for chart in charts.values():
        assert "Requests per second, 64 in flight" in chart
        places = [chart.index(f">{value}<") for value in ("900", "600", "30")]
        assert places == sorted(places)
    assert charts["speed-dark.svg"] != charts["speed-light.svg"]


def test_a_run_without_the_perceptron_makes_no_page(samples: Samples) -> None:
    others = {cell: rounds for cell, rounds in samples.items() if cell.peer == BARE}
    with pytest.raises(ValueError, match="mlp"):
        page.page(others, ABOUT)


def test_the_readme_says_where_another_server_is_faster(samples: Samples) -> None:
    times = "\N{MULTIPLICATION SIGN}"
    assert f"| Nereid | gRPC | 0.8 {times} | 1.5 {times} |" in page.readme_figure(samples, ABOUT)
