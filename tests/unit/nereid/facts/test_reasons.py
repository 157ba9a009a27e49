"""What is said about a mesh's figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nereid.facts.mesh_facts import ConfigFacts, MeshFacts, VersionFacts
from nereid.facts.reasons import Statement, explain
from nereid.observability.metrics import CLOSING_REASONS
from nereid.observability.samples import Samples

_M = 'model="m",version="1"'
_DYNAMIC = {
    "name": "m",
    "max_batch_size": 8,
    "dynamic_batching": {"max_queue_delay_microseconds": 100},
    "a_field_of_tomorrow": 1,
}


def page(*samples: str) -> Samples:
    return Samples("\n".join(each.replace("M", _M) for each in samples).encode())


def facts(
    version: VersionFacts | None, *samples: str, earlier: MeshFacts | None = None
) -> MeshFacts:
    versions = () if version is None else (version,)
    metrics = page("nereid_executors 2", *samples)
    return MeshFacts("m", True, versions, ("m", "mm"), metrics, earlier=earlier)


def ready(config: dict[str, Any] | None = None) -> VersionFacts:
    return VersionFacts("1", "READY", "", True, ConfigFacts.of_document(config or _DYNAMIC))


def said(of: MeshFacts) -> dict[str, Statement]:
    return {each.code: each for each in explain(of)}


def problems(of: MeshFacts) -> list[str]:
    return [each.code for each in explain(of) if each.problem]


@pytest.mark.parametrize(
    ("version", "samples", "code"),
    [
        (VersionFacts("", "", ""), (), "never-loaded"),
        (VersionFacts("", "UNAVAILABLE", "two of them"), (), "unavailable"),
        (VersionFacts("1", "UNAVAILABLE", "unloaded"), (), "unloaded"),
        (VersionFacts("1", "UNAVAILABLE", "Internal: no such file"), (), "unavailable"),
        (VersionFacts("1", "LOADING", ""), (), "loading"),
        (VersionFacts("1", "UNLOADING", ""), (), "unloading"),
        (VersionFacts("1", "READY", "", False), ("nereid_instances{M,state='x'} 2",), "not-ready"),
    ],
)
def test_what_is_not_ready_is_a_problem(
    version: VersionFacts, samples: tuple[str, ...], code: str
) -> None:
    of = facts(version, *samples)
    assert problems(of) == [code]
    statement = said(of)[code]
    assert version.reason in statement.text
    assert statement.figures["state"] == version.state


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        (
            "it needs 900 bytes of CPU on executor 'e', whose budget is 800",
            "raise the scheduler's --model-memory-budget",
        ),
        (
            "the models of ensemble 'm' do not fit the memory budget together",
            "raise the scheduler's --model-memory-budget",
        ),
        ("Internal: no such file", "`nereid check` finds those that lie in the configuration"),
    ],
)
def test_advice_names_what_can_help(reason: str, advice: str) -> None:
    assert advice in said(facts(VersionFacts("1", "UNAVAILABLE", reason)))["unavailable"].advice


def test_its_own_check_says_no() -> None:
    version = VersionFacts("1", "READY", "", False)
    of = facts(version, 'nereid_instances{M,state="free"} 2', 'nereid_instances{M,state="busy"} 0')
    assert "loaded, with 2 instances, but reports itself not ready" in said(of)["not-ready"].text


def test_an_unknown_model_with_a_similar_name() -> None:
    assert said(facts(None))["unknown-model"].advice == "did you mean 'm'?"
    far = MeshFacts("zebra", True, (), ("m",), page())
    assert said(far)["unknown-model"].advice == "the index lists what there is"


def test_a_mesh_without_executors() -> None:
    version = VersionFacts("1", "LOADING", "")
    of = MeshFacts("m", False, (version,), ("m",), page("nereid_executors 0"))
    assert problems(of) == ["no-executor", "loading"]
    assert said(of)["loading"].text.endswith("it waits for an executor")


def test_ready_and_batching() -> None:
    of = facts(
        ready(),
        "nv_model_load_duration_secs{M} 1.25",
        'nereid_instances{M,state="free"} 1',
        'nereid_instances{M,state="busy"} 1',
        'nv_inference_count{gpu_uuid="GPU-7",M} 600',
        "nv_inference_exec_count{M} 100",
        "nereid_batch_size_sum{M} 600",
        "nereid_batch_size_count{M} 100",
        'nereid_batches_closed_total{M,reason="full"} 80',
        'nereid_batches_closed_total{M,reason="delay"} 20',
        "nv_inference_request_success{M} 600",
        "nv_inference_request_duration_us{M} 6000000",
        "nv_inference_queue_duration_us{M} 4000000",
        "nv_inference_compute_infer_duration_us{M} 1000000",
        "nereid_held_requests 3",
        "nv_cache_num_hits_per_model{M} 1",
        "nv_cache_num_misses_per_model{M} 3",
    )
    assert problems(of) == []
    found = said(of)
    assert found["ready"].figures == {"state": "READY", "load_seconds": 1.25}
    assert found["instances"].text == "2 instances, 1 of them busy, on 2 executors, on GPU-7"
    assert found["batch-size"].figures["mean_rows"] == 6
    assert found["closed-full"].text == (
        "80% of the batches had max_batch_size rows or as many as fit"
    )
    # A fifth of them is not worth a line.
    assert "closed-delay" not in found
    assert found["times"].text == (
        "a request takes 10.00 ms on average: 6.67 ms in the queue, 1.67 ms in the model"
        " (600 requests)"
    )
    assert "most of that is waiting" in found["times"].advice
    assert found["held-requests"].figures == {"held_requests": 3}
    assert found["cache"].text.startswith("25% of the lookups")


@pytest.mark.parametrize(
    ("reason", "problem", "advice"),
    [
        ("shape", True, "padding"),
        ("immediate", False, "nothing waits"),
        ("delay", False, "within 100 us"),
        ("single", False, ""),
    ],
)
def test_why_batches_are_small(reason: str, problem: bool, advice: str) -> None:
    of = facts(
        ready(),
        "nereid_batch_size_sum{M} 11",
        "nereid_batch_size_count{M} 10",
        f'nereid_batches_closed_total{{M,reason="{reason}"}} 10',
    )
    statement = said(of)[f"closed-{reason}"]
    assert statement.problem is problem
    assert advice in statement.advice
    assert "1.10 rows on average" in said(of)["batch-size"].text


@pytest.mark.parametrize("reason", CLOSING_REASONS)
def test_each_reason_has_words(reason: str) -> None:
    of = facts(
        ready(),
        "nereid_batch_size_sum{M} 40",
        "nereid_batch_size_count{M} 10",
        f'nereid_batches_closed_total{{M,reason="{reason}"}} 10',
    )
    text = said(of)[f"closed-{reason}"].text
    assert text != f"100% of the batches {reason}"
    assert ("fair share" in text, "costs least" in text) == (reason == "shared", reason == "cost")


def test_the_budget_of_tokens_is_named() -> None:
    tokens = {"parameters": {"max_batch_tokens": {"string_value": "16384"}}}
    of = facts(ready(_DYNAMIC | tokens), "nereid_batch_size_count{M} 1")
    text = said(of)["batch-size"].text
    assert text.endswith("max_batch_size allows 8, and max_batch_tokens allows 16384 padded tokens")


def test_only_what_happens_between_two_looks_counts() -> None:
    first = facts(ready(), "nereid_batch_size_sum{M} 100", "nereid_batch_size_count{M} 100")
    later = facts(
        ready(), "nereid_batch_size_sum{M} 140", "nereid_batch_size_count{M} 110", earlier=first
    )
    assert said(later)["batch-size"].figures["mean_rows"] == 4
    same = facts(
        ready(), "nereid_batch_size_sum{M} 100", "nereid_batch_size_count{M} 100", earlier=first
    )
    assert said(same)["no-executions"].text == "it has executed nothing meanwhile"


def test_configurations_that_do_not_batch() -> None:
    found = said(facts(ready({"name": "m", "max_batch_size": 4}), "nereid_batch_size_count{M} 1"))
    assert "no-dynamic-batching" in found
    ensemble = {"name": "m", "platform": "ensemble", "ensemble_scheduling": {}}
    assert "batch-size" not in said(facts(ready(ensemble), "nereid_batch_size_count{M} 1"))


def test_what_requests_meet() -> None:
    of = facts(
        ready(),
        "nv_inference_pending_request_count{M} 9",
        'nereid_instances{M,state="free"} 0',
        'nereid_instances{M,state="busy"} 2',
        "nereid_requests_refused_total{M} 4",
        'nv_inference_request_failure{M,reason="BACKEND"} 2',
        'nv_inference_request_failure{M,reason="CANCELED"} 0',
        "nereid_retries_total{M} 1",
        'nereid_sequences{M,state="live"} 5',
        'nereid_sequences{M,state="backlog"} 3',
    )
    assert problems(of) == ["refused", "failures"]
    found = said(of)
    assert found["pending"].text == "9 requests wait while all 2 instances are busy"
    assert found["failures"].text == "requests failed: 2 BACKEND"
    assert found["retries"].figures == {"retries": 1}
    assert found["sequence-backlog"].text.startswith("3 of 5 sequences")


def test_cancelled_requests_are_no_problem() -> None:
    of = facts(ready(), 'nv_inference_request_failure{M,reason="CANCELED"} 2')
    assert problems(of) == []
    assert said(of)["failures"].text == "requests failed: 2 CANCELED"


def test_a_version_without_instances() -> None:
    of = facts(
        VersionFacts("1", "READY", "no executor has it", False),
        'nereid_instances{M,state="free"} 0',
        'nereid_instances{M,state="busy"} 0',
    )
    assert problems(of) == ["not-ready", "instances"]


def test_a_model_that_is_loaded_on_demand() -> None:
    version = VersionFacts("1", "READY", "not in memory; the next request loads it", True)
    assert [each.code for each in explain(facts(version))] == ["not-in-memory"]
    assert problems(facts(version)) == []


def test_an_update_that_failed() -> None:
    version = VersionFacts("1", "READY", "out of memory", True, ConfigFacts.of_document(_DYNAMIC))
    assert problems(facts(version)) == ["ready-with-reason"]


def test_without_metrics_the_statistics_count() -> None:
    statistics = {"inference_count": 30, "execution_count": 10}
    version = VersionFacts("1", "READY", "", True, ConfigFacts.of_document(_DYNAMIC), statistics)
    of = MeshFacts("m", True, (version,), ("m",), None, "connection refused")
    found = said(of)
    assert found["batch-size"].figures["mean_rows"] == 3
    assert "connection refused" in found["no-metrics"].text
    assert problems(of) == []


_HELD = (
    "nereid_target_p99_us{M} 50000",
    "nereid_target_held_us{M} 49000",
    "nereid_target_batch_size{M} 24",
    "nereid_target_delay_us{M} 2500",
    "nereid_target_execution_us{M} 34000",
    "nereid_target_missed_total{M} 3",
    "nv_inference_request_success{M} 1000",
)


def test_what_a_target_has_decided() -> None:
    found = said(facts(ready(), *_HELD, "nereid_target_reachable{M} 1"))
    assert found["target"].text == (
        "target_p99_us 50000: batches have at most 24 rows, which take up to 34.00 ms, and wait"
        " 2.50 ms for more while an instance is free; requests that would take longer than 49.00 ms"
        " are refused; 3 of 1000 took longer than the target"
    )
    assert found["target"].figures["batch_size"] == 24
    assert "target-unreachable" not in found


def test_a_target_that_cannot_be_held_is_a_problem() -> None:
    of = facts(ready(), *_HELD, "nereid_target_reachable{M} 0")
    assert problems(of) == ["target-unreachable"]
    assert "49.00 ms is held instead" in said(of)["target-unreachable"].text


def test_a_target_without_executions_has_decided_nothing() -> None:
    found = said(facts(ready(), "nereid_target_p99_us{M} 50000"))
    assert "too few executions" in found["target"].text
    assert "target" not in said(facts(ready()))


def test_the_weight_among_requests_without_a_version() -> None:
    name = "nereid_model_traffic_weight"
    alone = said(facts(ready(), f"{name}{{M}} 10"))["traffic"]
    assert alone.text.startswith("version 1 has weight 10 among requests")
    other = f'{name}{{model="m",version="2"}} 90'
    both = said(facts(ready(), f"{name}{{M}} 10", other))["traffic"]
    assert both.text.startswith("version 1 has weight 10 of 100 among requests")
    assert both.figures == {"weight": 10, "total": 100}
    assert "traffic" not in said(facts(ready()))
    assert "traffic-without-version" not in said(facts(ready(), other.replace("90", "0")))
    missing = said(facts(ready(), f"{name}{{M}} 10", other))["traffic-without-version"]
    assert missing.problem
    assert missing.figures == {"weight": 90}


def test_what_the_mesh_says_of_traffic_and_the_shadow() -> None:
    other = 'nereid_model_traffic_weight{model="m",version="2"} 90'
    warned = replace(
        facts(ready(), other), traffic_warnings=("version 2 is odd",), shadow_problem="no target"
    )
    found = said(warned)
    assert found["traffic-warning"].text == "traffic: version 2 is odd"
    assert found["shadow-problem"].text == "its shadow: no target"
    # What the mesh says takes the place of what its metrics suggest.
    assert problems(warned) == ["traffic-warning"]


def test_an_ensembles_skipped_steps() -> None:
    config = {
        "name": "m",
        "platform": "ensemble",
        "ensemble_scheduling": {"step": [{"model_name": name} for name in ("a", "b", "c")]},
        "parameters": {"condition.b": {"string_value": "SCORE >= 0.5"}},
    }
    skipped = ("b", 3), ("c", 1)
    samples = [
        f"nereid_ensemble_steps_skipped_total{{M,step='{step}'}} {count}".replace("'", '"')
        for step, count in skipped
    ]
    texts = [
        each.text for each in explain(facts(ready(config), *samples)) if each.code == "step-skipped"
    ]
    assert texts == [
        "step 'b' was skipped 3 times: its condition is 'SCORE >= 0.5'",
        "step 'c' was skipped 1 times: it needs a skipped one",
    ]


def test_where_a_configuration_of_several_files_comes_from() -> None:
    sources = {
        "backend": "config.pbtxt:1",
        "max_batch_size": "config.cpu.pbtxt:2",
        "parameters[a]": "config.pbtxt:7",
    }
    statement = said(facts(ready(_DYNAMIC | {"sources": sources})))["config-sources"]
    assert statement.text == (
        "config.pbtxt says backend (line 1), parameters[a] (line 7); config.cpu.pbtxt says"
        " max_batch_size (line 2)"
    )
    assert statement.figures == sources
    assert "config-sources" not in said(facts(ready()))


def test_what_was_compared_with_a_shadow() -> None:
    compared = 'nereid_shadow_compared_total{model="m"} 10'
    assert "with no difference" in said(facts(ready(), compared))["shadow"].text
    found = said(
        facts(
            ready(),
            compared,
            'nereid_shadow_differences_total{model="m",kind="shape"} 1',
            'nereid_shadow_differences_total{model="m",kind="value"} 2',
            'nereid_shadow_not_compared_total{model="m",reason="busy"} 5',
        )
    )["shadow"]
    assert found.text.endswith("with differences: 1 of shape, 2 of value")
    assert found.figures == {"compared": 10, "differences": 3, "not_compared": 5}
    assert "shadow" not in said(facts(ready()))
