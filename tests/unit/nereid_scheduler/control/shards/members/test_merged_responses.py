"""One response of those of several schedulers."""

from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.control.shards.members.merged_responses import (
    merge_facts,
    merge_indexes,
    merge_metrics,
    merge_statistics,
)


def _index(*entries: tuple[str, ...]) -> kserve_pb2.RepositoryIndexResponse:
    response = kserve_pb2.RepositoryIndexResponse()
    for name, version, state, *reason in entries:
        response.models.add(name=name, version=version, state=state, reason="".join(reason))
    return response


def test_the_index_shows_each_model_as_its_scheduler_does() -> None:
    own = _index(
        ("a", "1", "READY"), ("a", "2", "UNAVAILABLE", "why"), ("b", "", ""), ("c", "", "")
    )
    other = _index(("a", "", ""), ("b", "1", "LOADING"), ("c", "", ""))
    merged = merge_indexes([own, other], {}, ready_only=False)
    assert merged == _index(
        ("a", "1", "READY"), ("a", "2", "UNAVAILABLE", "why"), ("b", "1", "LOADING"), ("c", "", "")
    )  # fmt: skip


def test_of_two_that_show_a_models_versions_the_one_counts_that_has_come_further() -> None:
    leaving, loading = _index(("a", "1", "UNLOADING")), _index(("a", "1", "LOADING"))
    for indexes in ([leaving, loading], [loading, leaving]):
        assert merge_indexes(indexes, {}, ready_only=False) == loading


def test_models_of_a_silent_scheduler_are_unavailable_unless_another_one_has_them() -> None:
    own = _index(("a", "1", "READY"), ("b", "", ""))
    silent = {"x": ["a", "b", "brought"]}
    reason = "its scheduler 'x' does not respond"
    assert merge_indexes([own], silent, ready_only=False) == _index(
        ("a", "1", "READY"),
        ("b", "", "UNAVAILABLE", reason),
        ("brought", "", "UNAVAILABLE", reason),
    )
    ready = _index(("a", "1", "READY"))
    assert merge_indexes([ready], silent, ready_only=True) == ready


def test_statistics_have_each_version_once() -> None:
    def statistics(*models: tuple[str, str, int]) -> kserve_pb2.ModelStatisticsResponse:
        response = kserve_pb2.ModelStatisticsResponse()
        for name, version, count in models:
            response.model_stats.add(name=name, version=version, inference_count=count)
        return response

    merged = merge_statistics([statistics(("a", "1", 3)), statistics(("b", "1", 4), ("a", "1", 5))])
    assert merged == statistics(("a", "1", 3), ("b", "1", 4))


OWN = b"""\
# HELP nv_inference_count Inferences
# TYPE nv_inference_count counter
nv_inference_count{model="a",version="1"} 3
# TYPE nereid_batch_size histogram
nereid_batch_size_bucket{model="a",version="1",le="1"} 1.5
# TYPE nv_inference_queue_summary_us summary
nv_inference_queue_summary_us{model="a",version="1",quantile="0.5"} 7
nv_inference_queue_summary_us_sum{model="a",version="1"} 10
# HELP nereid_links Links
# TYPE nereid_links gauge
nereid_links{peer="gateway"} 2
# TYPE nereid_link_pending_requests gauge
nereid_link_pending_requests{link="1"} 4
# TYPE nv_cache_num_entries gauge
nv_cache_num_entries 9
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.5
"""
OTHER = b"""\
# HELP nv_inference_count Inferences
# TYPE nv_inference_count counter
nv_inference_count{model="b",version="1"} 5
nv_inference_count{model="a",version="1"} 1
# TYPE nereid_batch_size histogram
nereid_batch_size_bucket{model="a",version="1",le="1"} 2
# TYPE nv_inference_queue_summary_us summary
nv_inference_queue_summary_us{model="a",version="1",quantile="0.5"} 8
nv_inference_queue_summary_us_sum{model="a",version="1"} 20
# HELP nereid_links Links
# TYPE nereid_links gauge
nereid_links{peer="gateway"} 3
# TYPE nereid_link_pending_requests gauge
nereid_link_pending_requests{link="1"} 6
# TYPE nv_cache_num_entries gauge
nv_cache_num_entries 8
# TYPE mine counter
mine 1
"""


def test_a_metrics_page_has_all_models_and_each_family_once() -> None:
    assert (
        merge_metrics({"x": OWN, "y": OTHER}).decode()
        == """\
# HELP nv_inference_count Inferences
# TYPE nv_inference_count counter
nv_inference_count{model="a",version="1"} 4
nv_inference_count{model="b",version="1"} 5
# TYPE nereid_batch_size histogram
nereid_batch_size_bucket{model="a",version="1",le="1"} 3.5
# TYPE nv_inference_queue_summary_us summary
nv_inference_queue_summary_us{model="a",version="1",quantile="0.5"} 7
nv_inference_queue_summary_us_sum{model="a",version="1"} 30
# HELP nereid_links Links
# TYPE nereid_links gauge
nereid_links{peer="gateway"} 5
# TYPE nereid_link_pending_requests gauge
nereid_link_pending_requests{scheduler="x",link="1"} 4
nereid_link_pending_requests{scheduler="y",link="1"} 6
# TYPE nv_cache_num_entries gauge
nv_cache_num_entries 9
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.5
# TYPE mine counter
mine 1
"""
    )


def test_exemplars_keep_their_lines_when_buckets_are_summed() -> None:
    line = b'nereid_batch_size_bucket{model="a",version="1",le="1"} %d # {trace_id="%b"} 0.5 1.25\n'
    head = b"# TYPE nereid_batch_size histogram\n"
    pages = {
        "x": head + line.partition(b" #")[0] % 3 + b"\n",
        "y": head + line % (2, b"beef"),
        "z": head + line % (1, b"feed"),
    }
    assert merge_metrics(pages) == head + line % (6, b"beef")


def test_what_waits_is_summed_over_schedulers() -> None:
    line = b'# TYPE nereid_pending_requests gauge\nnereid_pending_requests{device="gpu"} %d\n'
    assert merge_metrics({"x": line % 3, "y": line % 2}) == line % 5


def test_an_executor_has_the_models_of_all_schedulers() -> None:
    def facts(scheduler: str, model: str) -> pb.FactsResponse:
        hosted = pb.HostedModel(model=model, version=1, instances=2)
        executors = [pb.ExecutorFacts(name=name, hosted=[hosted]) for name in ("e-1", "e-0")]
        return pb.FactsResponse(
            executors=executors,
            schedulers=[pb.SchedulerFacts(name=scheduler, reachable=True, owned=[model])],
            configs=[pb.DeclaredConfig(model=model, version=1)],
        )

    merged = merge_facts([facts("s-0", "a"), facts("s-1", "b")], ["s-3", "s-2"])
    assert [each.name for each in merged.executors] == ["e-0", "e-1"]
    assert [[each.model for each in one.hosted] for one in merged.executors] == [["a", "b"]] * 2
    names = [(each.name, each.reachable) for each in merged.schedulers]
    assert names == [("s-0", True), ("s-1", True), ("s-2", False), ("s-3", False)]
    assert [each.model for each in merged.configs] == ["a", "b"]
