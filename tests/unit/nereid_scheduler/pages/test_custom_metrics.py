"""Custom metrics: several reports of one metric, and reports that do not match."""

from typing import Any

from nereid.observability.metrics_page import Page
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.pages.custom_metrics import write_custom


def series(name: str, value: float, kind: str = "counter", **more: Any) -> pb.CustomSeries:
    return pb.CustomSeries(name=name, description=f"About {name}", kind=kind, value=value, **more)


def page_of(*reports: list[pb.CustomSeries]) -> list[str]:
    page = Page()
    write_custom(page, [pb.CustomMetrics(series=each) for each in reports])
    return page.encode().decode().splitlines()


def test_counters_of_all_reports_are_added_up() -> None:
    one = series("c", 2, labels={"b": "x", "a": "y"})
    assert page_of([one, series("c", 1)], [one]) == [
        "# HELP c About c",
        "# TYPE c counter",
        'c{a="y",b="x"} 4',
        "c 1",
    ]


def test_the_last_value_of_a_gauge_counts() -> None:
    assert page_of([series("g", 5, "gauge")], [series("g", 3, "gauge")])[-1:] == ["g 3"]


def test_histograms_with_the_same_bounds_are_added_up() -> None:
    one = series("h", 3, "histogram", bounds=[1, 2], counts=[1, 0, 2])
    two = series("h", 4, "histogram", bounds=[1, 2], counts=[0, 1, 0])
    other = series("h", 9, "histogram", bounds=[1], counts=[7, 7])
    assert page_of([one], [two, other])[2:] == [
        'h_bucket{le="1"} 1',
        'h_bucket{le="2"} 2',
        'h_bucket{le="+Inf"} 4',
        "h_sum 7",
        "h_count 4",
    ]


def test_a_series_of_another_kind_is_dropped() -> None:
    assert page_of([series("m", 1), series("m", 2, "gauge")])[2:] == ["m 1"]
