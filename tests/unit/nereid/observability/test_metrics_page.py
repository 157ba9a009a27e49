"""The metrics page, its histograms and summaries."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nereid.observability import metrics
from nereid.observability.metrics_page import (
    Family,
    Histogram,
    Page,
    Summary,
    merge_pages,
    replace_series,
)

LOOKUPS = Family("nv_lookups", "counter", "How many.", ("model",))
SIZES = Family("nereid_sizes", "histogram", "How large.", ("model",))
TIMES = Family("nereid_times", "summary", "How long.")


def test_series_stand_below_their_family_in_any_order() -> None:
    page = Page()
    page.add_value(LOOKUPS, 3, {"model": "a"})
    page.add_value(metrics.EXECUTORS, 1)
    page.add_value(LOOKUPS, 0.5, {"model": "b"})
    assert page.encode().decode().splitlines() == [
        "# HELP nv_lookups How many.",
        "# TYPE nv_lookups counter",
        'nv_lookups{model="a"} 3',
        'nv_lookups{model="b"} 0.5',
        "# HELP nereid_executors Executors that have joined",
        "# TYPE nereid_executors gauge",
        "nereid_executors 1",
    ]


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "new\nline", "grün"])
def test_labels_are_escaped(name: str) -> None:
    page = Page()
    page.add_value(LOOKUPS, 1, {"model": name})
    (family,) = text_string_to_metric_families(page.encode().decode())
    assert family.samples[0].labels == {"model": name}


@pytest.mark.parametrize("text", ["a\n# TYPE b counter", "back\\slash", 'quo"te', ""])
def test_help_of_a_model_is_one_line(text: str) -> None:
    page = Page()
    page.add_value(Family("custom", "gauge", text), 1)
    (family,) = text_string_to_metric_families(page.encode().decode())
    assert (family.name, family.documentation) == ("custom", text)
    # Without a text there is no line, as on Triton.
    assert (b"# HELP" in page.encode()) == bool(text)


def test_a_histogram_counts_upwards() -> None:
    observed = Histogram((1, 4))
    for value, times in ((1, 2), (3, 1), (9, 1)):
        observed.observe(value, times)
    page = Page()
    page.add_histogram(SIZES, {"model": "a"}, observed, 14)
    (family,) = text_string_to_metric_families(page.encode().decode())
    samples = [(sample.name, sample.labels.get("le"), sample.value) for sample in family.samples]
    assert samples == [
        ("nereid_sizes_bucket", "1", 2),
        ("nereid_sizes_bucket", "4", 3),
        ("nereid_sizes_bucket", "+Inf", 4),
        ("nereid_sizes_sum", None, 14),
        ("nereid_sizes_count", None, 4),
    ]


def test_a_summary_has_the_quantiles_of_what_it_saw_lately_and_the_sum_of_all() -> None:
    observed = Summary()
    for value in range(101):
        observed.observe(value)
    page = Page()
    page.add_summary(TIMES, {}, observed, (0.0, 0.5, 0.99, 1.0))
    assert page.encode().decode().splitlines()[2:] == [
        'nereid_times{quantile="0"} 0',
        'nereid_times{quantile="0.5"} 50',
        'nereid_times{quantile="0.99"} 99',
        'nereid_times{quantile="1"} 100',
        "nereid_times_sum 5050",
        "nereid_times_count 101",
    ]


def test_a_summary_forgets_old_values() -> None:
    observed = Summary()
    for value in (*[1000.0] * 100, *[1.0] * Summary.WINDOW):
        observed.observe(value)
    assert observed.at((0.0, 1.0)) == [1.0, 1.0]
    assert observed.count == 100 + Summary.WINDOW


def test_an_empty_summary_has_no_quantiles() -> None:
    assert all(map(math.isnan, Summary().at((0.5, 0.9))))
    page = Page()
    page.add_summary(TIMES, {}, Summary(), (0.5,))
    assert 'nereid_times{quantile="0.5"} NaN' in page.encode().decode()


def test_common_labels_come_first() -> None:
    page = Page({"gateway": "1"})
    page.add_value(Family("a", "gauge", ""), 1)
    page.add_value(Family("b", "gauge", "", ("x",)), 2, {"x": "y"})
    assert b'a{gateway="1"} 1\n' in page.encode()
    assert b'b{gateway="1",x="y"} 2\n' in page.encode()


def test_pages_are_merged_by_family() -> None:
    def page(number: int, *families: Family) -> bytes:
        made = Page({"n": str(number)})
        for family in families:
            made.add_value(family, number)
        return made.encode()

    both, one, silent = Family("both", "gauge", "Of both"), Family("one", "gauge", ""), b""
    assert merge_pages((page(1, both), silent, page(2, one, both))) == (
        b'# HELP both Of both\n# TYPE both gauge\nboth{n="1"} 1\nboth{n="2"} 2\n'
        b'# TYPE one gauge\none{n="2"} 2\n'
    )
    assert merge_pages((page(1, both),)) == page(1, both)


def test_a_carriage_return_in_a_label_ends_no_line() -> None:
    page = Page()
    page.add_value(LOOKUPS, 1, {"model": "a\rb"})
    assert merge_pages([page.encode()]) == page.encode()
    (family,) = text_string_to_metric_families(page.encode().decode())
    assert family.samples[0].labels == {"model": "a\rb"}


def test_the_counts_of_a_page_are_without_gauges_and_quantiles() -> None:
    page, latest = Page(), Summary()
    latest.observe(3)
    page.add_value(LOOKUPS, 1, {"model": 'a quantile="0.5"'})
    page.add_value(metrics.EXECUTORS, 1)
    page.add_histogram(SIZES, {}, Histogram((1,)), 0)
    page.add_summary(TIMES, {}, latest, (0.5,))
    lines = page.encode_counts().decode().splitlines()
    assert [each for each in lines if not each.startswith("# ")] == [
        'nv_lookups{model="a quantile=\\"0.5\\""} 1',
        'nereid_sizes_bucket{le="1"} 0',
        'nereid_sizes_bucket{le="+Inf"} 0',
        "nereid_sizes_sum 0",
        "nereid_sizes_count 0",
        "nereid_times_sum 3",
        "nereid_times_count 1",
    ]


def _lookups(**values: int) -> bytes:
    page = Page()
    for model, value in values.items():
        page.add_value(LOOKUPS, value, {"model": model})
    return page.encode()


def test_series_are_replaced_where_they_stand_and_others_of_a_replacement_added() -> None:
    page = _lookups(a=1, b=2) + b"# TYPE x gauge\nx 5\n"
    replaced = replace_series(page, [_lookups(b=7, c=8), _lookups(d=9)])
    assert replaced == _lookups(a=1, b=7, c=8) + b"# TYPE x gauge\nx 5\n"
    assert replace_series(page, [_lookups(d=9)]) is page
    assert replace_series(page, []) is page


def test_a_replaced_series_keeps_its_exemplar() -> None:
    mark = b' # {trace_id="ab"} 3 4.000'
    page = _lookups(a=1).replace(b" 1\n", b" 1" + mark + b"\n")
    assert replace_series(page, [_lookups(a=5)]).endswith(b" 5" + mark + b"\n")
