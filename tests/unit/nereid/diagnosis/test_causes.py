"""Each rule finds its cause in figures that show it, and nothing in figures that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nereid.diagnosis.causes import Diagnosis, diagnose
from nereid.diagnosis.snapshot import Snapshot
from nereid.facts.mesh_facts import ConfigFacts

_INPUT = {"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 8]}
_PADDING = {"padding": {"string_value": "x[0]=1 -> y[0]: 16, 64; z[1]: 4"}}


def config(**fields: Any) -> ConfigFacts:
    return ConfigFacts.of_document({"name": "m", **fields})


_BATCHED = config(max_batch_size=8, dynamic_batching={}, input=[_INPUT])
_UNBATCHED = config(max_batch_size=8, input=[_INPUT])
_DELAYED = config(max_batch_size=8, dynamic_batching={"max_queue_delay_microseconds": 50_000})
_WARM = config(max_batch_size=8, dynamic_batching={}, model_warmup=[{"name": "w"}])
_ENSEMBLE = config(ensemble_scheduling={"step": []})
_PADDED = config(max_batch_size=8, dynamic_batching={}, parameters=_PADDING)
# Ten seconds with 100 requests a second of 10 ms each, 8 of them in the model.
HEALTHY = Snapshot(
    "m",
    "1",
    10.0,
    _BATCHED,
    requests=1000,
    request_us=10e6,
    queue_us=1e6,
    compute_us=8e6,
    executions=500,
    rows=1000,
    execution_us=4e6,
    executions_since_load=500,
    execution_us_since_load=4e6,
    first_execution_us=8_000,
    closed={"immediate": 500},
    connections=4,
)
# The only instance is never free, and seven of eight requests wait.
FULL = replace(
    HEALTHY,
    execution_us=9.9e6,
    execution_us_since_load=9.9e6,
    queue_us=70e6,
    compute_us=9.9e6,
    request_us=80e6,
    executions=1000,
)


def found(of: Snapshot, **figures: Any) -> list[Diagnosis]:
    return diagnose(replace(of, **figures))


def codes(of: Snapshot, **figures: Any) -> list[str]:
    return [each.code for each in found(of, **figures)]


@pytest.mark.parametrize(
    ("of", "figures", "code"),
    [
        (HEALTHY, {"state": "UNAVAILABLE", "reason": "no such file"}, "unavailable"),
        (HEALTHY, {"instances": (1, 0)}, "executor-lost"),
        (HEALTHY, {"instances": (1, 0), "executors": (1, 1)}, "executor-lost"),
        (HEALTHY, {"instances": (1, 0), "executors": (2, 1), "pending": 3}, "executor-lost"),
        (HEALTHY, {"retries": 2}, "executor-lost"),
        (HEALTHY, {"on_demand_loads": 2, "on_demand_unloads": 2, "loaded": True}, "memory"),
        (HEALTHY, {"on_demand_loads": 2, "on_demand_unloads": 2, "unloaded": True}, "memory"),
        (HEALTHY, {"on_demand_loads": 2, "on_demand_unloads": 2, "state": "LOADING"}, "memory"),
        (HEALTHY, {"memory_used": {"cpu": 0.5, "GPU-1": 0.97}}, "memory"),
        (HEALTHY, {"large_text_us": 10e6}, "large-json"),
        (HEALTHY, {"throttled": 0.5}, "throttled-cpu"),
        (FULL, {"throttled": 0.5}, "throttled-cpu"),
        (HEALTHY, {"scheduler_busy": 0.95}, "scheduler-saturated"),
        (FULL, {"config": _UNBATCHED}, "no-batcher"),
        (FULL, {}, "few-instances"),
        (FULL, {"config": None}, "few-instances"),
        (FULL, {"config": config(), "cpu_utilization": 0.95}, "few-instances"),
        (
            HEALTHY,
            {"config": _DELAYED, "closed": {"delay": 300, "full": 200}, "queue_us": 30e6}
            | {"request_us": 40e6},
            "long-delay",
        ),
        (HEALTHY, {"cache_misses": 100, "cache_hits": 1, "cache_miss_us": 1e6}, "useless-cache"),
        (HEALTHY, {"cache_misses": 100, "cache_evictions": 3}, "useless-cache"),
        (HEALTHY, {"first_execution_us": 500_000}, "no-warm-up"),
        (
            HEALTHY,
            {"first_execution_us": 500_000, "loaded": True, "config": config()},
            "no-warm-up",
        ),
        (HEALTHY, {"input_elements": 100, "padding_elements": 80}, "padding-waste"),
        (FULL, {"input_elements": 100, "padding_elements": 80}, "padding-waste"),
        (HEALTHY, {"connections": 1, "request_us": 1e6, "queue_us": 0}, "slow-client"),
    ],
)
def test_the_first_cause(of: Snapshot, figures: dict[str, Any], code: str) -> None:
    first, *_ = found(of, **figures)
    assert first.code == code
    document = first.document()
    assert document["text"].startswith(f"{first.evidence}: {first.advice}")
    assert document["remedy"] in document["text"]
    statement = first.statement("1")
    assert (statement.code, statement.problem) == (f"slow-{code}", False)
    assert first.evidence in statement.text
    assert 0 <= first.share <= 1


@pytest.mark.parametrize(
    "figures",
    [
        {},
        {"requests": 0, "request_us": 0, "queue_us": 0, "connections": 1},
        {"config": None},
        {"config": _ENSEMBLE, "instances": (0, 0)},
        {"in_memory": False, "instances": (0, 0)},
        {"state": "UNAVAILABLE", "reason": "unloaded", "in_memory": False},
        {"on_demand_loads": 2, "on_demand_unloads": 2},
        {"on_demand_loads": 2, "loaded": True},
        {"memory_used": {"cpu": 0.9}},
        {"memory_used": {"cpu": 0.99}, "requests": 0},
        {"large_text_us": 1e6},
        {"throttled": 0.05},
        {"throttled": 0.5, "queue_us": 0, "compute_us": 1e6},
        {"scheduler_busy": 0.8},
        {"scheduler_busy": 0.99, "requests": 0},
        {"config": _UNBATCHED},
        {"config": _DELAYED, "closed": {"delay": 500}},
        {"config": _DELAYED, "closed": {"delay": 1, "full": 9}, "queue_us": 9e6},
        {"config": _DELAYED, "closed": {"delay": 500}, "queue_us": 9e6, "rows": 4000},
        {"config": _DELAYED, "closed": {"delay": 500}, "queue_us": 9e6},
        {"config": _WARM, "first_execution_us": 500_000},
        {"first_execution_us": 500_000, "executions_since_load": 1},
        {"cache_misses": 40},
        {"cache_misses": 100, "cache_hits": 10},
        {"input_elements": 100, "padding_elements": 10},
        {"input_elements": 100, "padding_elements": 80, "compute_us": 0},
        {"input_elements": 100, "padding_elements": 80, "requests": 0},
        {"connections": 100, "request_us": 1e6},
        {"connections": 0},
        {"seconds": 0.0, "queue_us": 0.0},
        # With counter_latencies=false.
        {"request_us": 0, "queue_us": 0, "large_text_us": 1e6, "connections": 1},
    ],
)
def test_no_cause(figures: dict[str, Any]) -> None:
    assert codes(HEALTHY, **figures) == []


def test_what_batches_would_bring_is_bounded_by_the_requests_that_are_there() -> None:
    (of_eight,) = found(FULL, config=_UNBATCHED)
    assert of_eight.gain == "up to x8"
    (of_two,) = found(FULL, config=_UNBATCHED, request_us=20e6, queue_us=10e6)
    assert of_two.gain == "up to x2"
    assert of_two.share == 0.25
    assert of_two.advised() == (
        "add `dynamic_batching { }`, up to x2; `nereid analyze -m m` measures it"
    )
    assert "its only instance is busy 99%, batches of 1 of 8, no batcher" in of_two.evidence


def test_another_instance_does_not_help_a_throttled_executor() -> None:
    assert codes(FULL, throttled=0.9) == ["throttled-cpu"]
    (several,) = found(FULL, instances=(3, 3), execution_us=29e6)
    assert several.evidence.startswith("its 3 instances are busy 97%")
    assert several.remedy == "instance_group [{ count: 4 }]"


def test_a_first_execution_counts_for_as_much_as_it_took_in_the_window() -> None:
    (before,) = found(HEALTHY, first_execution_us=1e6)
    (within,) = found(HEALTHY, first_execution_us=1e6, loaded=True)
    assert (before.share, within.share) == (0, 0.1)
    assert within.remedy == (
        'model_warmup [{ name: "first" batch_size: 1 inputs { key: "x" value {'
        " data_type: TYPE_FP32 dims: [1, 8] zero_data: true } } }]"
    )


def test_smaller_padded_sizes_keep_the_parameter() -> None:
    (waste,) = found(HEALTHY, config=_PADDED, input_elements=10, padding_elements=8)
    assert waste.remedy == (
        'parameters { key: "padding" value { string_value:'
        ' "x[0]=1 -> y[0]: 2 4 8 16 32 64;  z[1]: 1 2 4" } }'
    )
    assert waste.gain == "executions up to x5 as fast"


def test_a_scheduler_that_waits_for_a_processor_is_named_as_such() -> None:
    (busy,) = found(HEALTHY, scheduler_busy=0.97, scheduler_waiting=0.1)
    assert "no processor free" not in busy.evidence
    (waiting,) = found(HEALTHY, scheduler_busy=0.97, scheduler_waiting=0.8)
    assert "80% of the time with no processor free for it" in waiting.evidence


def test_known_reasons_have_their_own_remedies() -> None:
    reason = "it needs 900 bytes of CPU on executor 'e', whose budget is 800"
    (known,) = found(HEALTHY, state="UNAVAILABLE", reason=reason)
    assert "--model-memory-budget" in known.advice
    assert known.remedy == ""


def test_a_version_is_idle_if_nothing_was_asked_of_it() -> None:
    assert Snapshot("m", "1", 10.0).idle
    assert Snapshot("m", "1", 0.0).busy == 0
    assert not HEALTHY.idle
    assert not Snapshot("m", "1", 10.0, pending=1).idle
