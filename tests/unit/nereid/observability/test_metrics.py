"""The declared metrics, and those that the cache writes."""

from nereid.observability import metrics
from nereid.observability.metrics_page import Page
from nereid.pb import nereid_pb2 as pb


def test_names_are_unique_and_counters_end_in_total() -> None:
    families = list(metrics.declared_families())
    assert {metrics.SUCCESS, metrics.DURATIONS["queue"]} < set(families)
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    own = [family for family in families if family.name.startswith("nereid_")]
    assert len(own) > 20
    for family in own:
        assert family.name.endswith("_total") is (family.kind == "counter")


def test_a_caches_counters() -> None:
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
    values = dict(line.split() for line in page.encode().decode().splitlines() if line[0] != "#")
    assert values == {
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


def test_durations_have_tritons_help_texts() -> None:
    texts = [metrics.DURATIONS["queue"].help, metrics.SUMMARIES["compute_infer"].help]
    assert texts == [
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        "Summary of compute inference duration in microseconds (does not include cached requests)",
    ]
