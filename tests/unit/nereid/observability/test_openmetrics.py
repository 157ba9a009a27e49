"""Pages as OpenMetrics, read by Prometheus' own strict parser, and who gets them."""

from __future__ import annotations

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families as read_text

from nereid.observability import metrics
from nereid.observability.metrics_page import (
    Exemplar,
    Family,
    Histogram,
    Page,
    Summary,
    merge_pages,
)
from nereid.observability.openmetrics import prefers_openmetrics, to_openmetrics
from tests.support.peers.openmetrics import read_openmetrics

SIZES = Family("nereid_sizes", "histogram", "How large.", ("model",))
TIMES = Family("nereid_times", "summary", "How long.")
TRACE = bytes(range(16))
# What Prometheus 2 and 3 send.
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "preferred"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=high", False),
        ("text/plain;q=0.9,application/openmetrics-text;q=0.5", False),
        ("text/*;q=0.5, application/openmetrics-text;q=0.5", True),
        ("application/json, application/openmetrics-text;q=0.1", True),
        (";;,;q", False),
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
    ],
)
def test_who_prefers_openmetrics(accept: str, preferred: bool) -> None:
    assert prefers_openmetrics(accept) is preferred


def a_page(*, exemplars: bool = False) -> Page:
    """One family of each kind; of counters, one of Triton's and one that ends in _total."""
    page = Page(exemplars=exemplars)
    page.add_value(metrics.SUCCESS, 3, {"model": 'a, le="4" # {trace_id="', "version": "1"})
    page.add_value(metrics.REFUSED, 2, {"model": "a", "version": "1"})
    page.add_value(Family("custom_total", "gauge", 'In "quotes" and \\.'), 1)
    page.add_value(Family("bare", "counter", ""), 1.5)
    sizes = Histogram((1, 2.5, 4))
    for value in (1, 3, 9):
        sizes.observe(value)
    sizes.set_exemplar(Exemplar(TRACE, 2.75, time.monotonic_ns()))
    sizes.set_exemplar(Exemplar(TRACE[::-1], 3.0, time.monotonic_ns()))
    page.add_histogram(SIZES, {"model": "a"}, sizes, 13)
    page.add_summary(TIMES, {}, Summary(), (0, 0.5, 1))
    return page


def test_series_have_the_names_and_values_that_they_have_as_text() -> None:
    page = a_page().encode()
    families = read_openmetrics(to_openmetrics(page).decode())
    assert {each.name: each.type for each in families} == {
        "nv_inference_request_success": "unknown",
        "nereid_requests_refused": "counter",
        "custom_total": "gauge",
        "bare": "unknown",
        "nereid_sizes": "histogram",
        "nereid_times": "summary",
    }
    assert families[2].documentation == 'In "quotes" and \\.'
    shown = [(each.name, each.labels, str(each.value)) for fam in families for each in fam.samples]
    lines = [line for line in page.decode().splitlines() if line[0] != "#"]
    assert [name for name, _, _ in shown] == [
        line.replace(" ", "{").split("{")[0] for line in lines
    ]
    as_text = [each for family in read_text(page.decode()) for each in family.samples]
    assert [(labels, value) for _, labels, value in shown] == [
        (_with_fractions(each.labels), str(each.value)) for each in as_text
    ]


def _with_fractions(labels: dict[str, str]) -> dict[str, str]:
    """Bounds and quantiles as OpenMetrics writes them, which Prometheus 3 does in either format."""
    return {
        name: value + ".0" if name in {"le", "quantile"} and value.isdecimal() else value
        for name, value in labels.items()
    }


def test_the_last_exemplar_of_a_bucket_is_on_its_line() -> None:
    before = time.time()
    text = to_openmetrics(a_page(exemplars=True).encode()).decode()
    exemplars = {
        sample.labels["le"]: sample.exemplar
        for family in read_openmetrics(text)
        for sample in family.samples
        if sample.name == "nereid_sizes_bucket"
    }
    found = exemplars.pop("4.0")
    assert set(exemplars.values()) == {None}
    assert found is not None
    assert (found.labels, found.value) == ({"trace_id": TRACE[::-1].hex()}, 3.0)
    assert found.timestamp is not None
    assert abs(float(found.timestamp) - before) < 60


def test_the_text_format_has_no_exemplars() -> None:
    assert a_page().encode() != a_page(exemplars=True).encode()
    assert '} 2 # {trace_id="' not in a_page().encode().decode()


def test_an_empty_page_and_a_merged_one() -> None:
    assert to_openmetrics(b"") == b"# EOF\n"
    one = a_page(exemplars=True).encode()
    merged = merge_pages([one, one.replace(b'model="a"', b'model="b"')])
    sizes = [
        sample
        for family in read_openmetrics(to_openmetrics(merged).decode())
        for sample in family.samples
        if sample.name == "nereid_sizes_bucket" and sample.exemplar is not None
    ]
    assert [sample.labels["model"] for sample in sizes] == ["a", "b"]
