"""The metrics page, its histograms and summaries."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nereid.observability import metrics
from nereid.observability.metrics import Family, Histogram, Page, Summary
from nereid.pb import nereid_pb2 as pb

LOOKUPS = Family("nv_lookups", "counter", "How many.", ("model",))
SIZES = Family("nereid_sizes", "histogram", "How large.", ("model",))
TIMES = Family("nereid_times", "summary", "How long.")


def test_series_stand_below_their_family_whenever_they_came() -> None:
    page = Page()
    page.add(LOOKUPS, 3, {"model": "a"})
    page.add(metrics.EXECUTORS, 1)
    page.add(LOOKUPS, 0.5, {"model": "b"})
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
def test_labels_come_back_as_they_were(name: str) -> None:
    page = Page()
    page.add(LOOKUPS, 1, {"model": name})
    (family,) = text_string_to_metric_families(page.encode().decode())
    assert family.samples[0].labels == {"model": name}


def test_a_histogram_counts_upwards() -> None:
    observed = Histogram((1, 4))
    for value, times in ((1, 2), (3, 1), (9, 1)):
        observed.observe(value, times)
    page = Page()
    page.histogram(SIZES, {"model": "a"}, observed, 14)
    (family,) = text_string_to_metric_families(page.encode().decode())
    told = [(sample.name, sample.labels.get("le"), sample.value) for sample in family.samples]
    assert told == [
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
    page.summary(TIMES, {}, observed, (0.0, 0.5, 0.99, 1.0))
    assert page.encode().decode().splitlines()[2:] == [
        'nereid_times{quantile="0"} 0',
        'nereid_times{quantile="0.5"} 50',
        'nereid_times{quantile="0.99"} 99',
        'nereid_times{quantile="1"} 100',
        "nereid_times_sum 5050",
        "nereid_times_count 101",
    ]


def test_a_summary_forgets_what_is_long_past() -> None:
    observed = Summary()
    for value in (*[1000.0] * 100, *[1.0] * Summary._WINDOW):
        observed.observe(value)
    assert observed.at((0.0, 1.0)) == [1.0, 1.0]
    assert observed.count == 100 + Summary._WINDOW


def test_an_empty_summary_knows_no_quantile() -> None:
    assert all(map(math.isnan, Summary().at((0.5, 0.9))))
    page = Page()
    page.summary(TIMES, {}, Summary(), (0.5,))
    assert 'nereid_times{quantile="0.5"} NaN' in page.encode().decode()


def test_names_are_unique_and_tell_their_unit() -> None:
    families = [each for each in vars(metrics).values() if isinstance(each, Family)]
    families += [*metrics.DURATIONS.values(), *metrics.SUMMARIES.values()]
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    own = [family for family in families if family.name.startswith(("nereid_", "process_"))]
    assert len(own) > 20
    for family in own:
        assert family.name.endswith("_total") is (family.kind == "counter")


def test_the_cache_by_what_it_told() -> None:
    page = Page()
    usage = pb.CacheUsage(
        entries=2,
        used_bytes=30,
        capacity_bytes=120,
        lookups=10,
        hits=7,
        evictions=1,
        stores=3,
        failures=4,
        lookup_ns=5000,
        store_ns=6000,
    )
    metrics.write_cache(page, usage)
    told = dict(line.split() for line in page.encode().decode().splitlines() if line[0] != "#")
    assert told == {
        "nv_cache_num_entries": "2",
        "nv_cache_num_lookups": "10",
        "nv_cache_num_hits": "7",
        "nv_cache_num_misses": "3",
        "nv_cache_num_evictions": "1",
        "nv_cache_lookup_duration": "5",
        "nv_cache_insertion_duration": "6",
        "nv_cache_util": "0.25",
        "nereid_cache_stores_total": "3",
        "nereid_cache_failures_total": "4",
        "nereid_cache_used_bytes": "30",
        "nereid_cache_capacity_bytes": "120",
    }


def test_a_store_without_a_bound_is_never_full() -> None:
    page = Page()
    metrics.write_cache(page, pb.CacheUsage(used_bytes=30))
    assert "nv_cache_util 0\n" in page.encode().decode()


def test_a_process_tells_of_itself() -> None:
    page = Page()
    metrics.write_process(page)
    families = {each.name for each in text_string_to_metric_families(page.encode().decode())}
    assert "process_resident_memory_bytes" in families
    assert "process_cpu_seconds" in families


def test_durations_tell_what_they_count_as_triton_does() -> None:
    told = [metrics.DURATIONS["queue"].help, metrics.SUMMARIES["compute_infer"].help]
    assert told == [
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        "Summary of compute inference duration in microseconds (does not include cached requests)",
    ]
