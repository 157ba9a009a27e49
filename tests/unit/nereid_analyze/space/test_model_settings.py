from dataclasses import replace
from typing import Any

import pytest

from nereid_analyze.space.candidate import DELAY, INSTANCES, MAX_BATCH, PREFERRED
from nereid_analyze.space.model_settings import (
    MODEL_ANALYZER,
    NAMES,
    Limits,
    defaults_of,
    listed_settings,
    model_settings,
)
from nereid_analyze.space.override import OFF, UNSET
from nereid_analyze.space.space import Space

_ONNX: dict[str, Any] = {
    "backend": "onnxruntime",
    "max_batch_size": 12,
    "dynamic_batching": {"preferred_batch_size": [12], "max_queue_delay_microseconds": 50},
    "instance_group": [{"kind": "KIND_CPU", "count": 2}],
    "parameters": {},
}
_ALL = Limits(instances=(1, 4), batches=(4, 16), threads=4, vary=frozenset(NAMES))


def _values(config: dict[str, Any], limits: Limits = _ALL) -> dict[str, tuple[Any, Any]]:
    return {each.name: (each.values, each.default) for each in model_settings("m", config, limits)}


def test_an_onnx_model_on_the_cpu_has_all_but_padding() -> None:
    assert _values(_ONNX) == {
        INSTANCES: ((1, 2, 3, 4), 2),
        MAX_BATCH: ((4, 8, 12, 16), 12),
        DELAY: ((0, 50, 100, 500, 2000, 10_000), 50),
        PREFERRED: ((UNSET, "half", "quarter"), UNSET),
        "parameters.intra_op_thread_count": ((1, 2, 4, UNSET), UNSET),
        "parameters.inter_op_thread_count": ((1, 2, 4, UNSET), UNSET),
    }


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"platform": "ensemble", "ensemble_scheduling": {"step": []}}, set()),
        ({"max_batch_size": 0, "backend": "python"}, {INSTANCES}),
        ({"sequence_batching": {}, "backend": "python"}, {INSTANCES}),
        ({"instance_group": [{"kind": "KIND_GPU", "count": 1}]},
         {INSTANCES, MAX_BATCH, DELAY, PREFERRED}),
        ({"instance_group": [{}, {}], "backend": "python"}, {MAX_BATCH, DELAY, PREFERRED}),
    ],
)  # fmt: skip
def test_what_a_model_does_not_have_is_not_varied(change: dict[str, Any], names: set[str]) -> None:
    assert set(_values({**_ONNX, **change})) == names


def test_without_a_batcher_that_is_a_value_of_the_delay() -> None:
    config = {key: value for key, value in _ONNX.items() if key != "dynamic_batching"}
    assert _values(config)[DELAY] == ((OFF, 0, 100, 500, 2000, 10_000), OFF)


def test_delays_leave_time_within_the_target() -> None:
    limits = Limits(target_us=4000)
    assert _values(_ONNX, limits)[DELAY] == ((0, 50, 100, 500), 50)


def test_padding_is_varied_where_the_model_has_it() -> None:
    text = "ids[0]=1 mask[0] -> logits[0]: 16 32 64 128"
    config = {**_ONNX, "parameters": {"padding": {"string_value": text}}}
    values, default = _values(config)["parameters.padding"]
    assert default == text
    assert values[1:] == (
        "ids[0]=1 mask[0] -> logits[0]: 32 128",
        "ids[0]=1 mask[0] -> logits[0]: 16 24 32 48 64 96 128",
    )


def test_listed_counts_are_instances_and_other_lists_whole_fields() -> None:
    found = listed_settings(
        "m",
        _ONNX,
        {
            MAX_BATCH: [4, 8],
            "instance_group": [[{"kind": "KIND_CPU", "count": 1}], [{"kind": "KIND_CPU"}]],
            "dynamic_batching": [{"max_queue_delay_microseconds": 100}],
        },
    )
    assert [(each.name, len(each.values)) for each in found] == [
        (MAX_BATCH, 3),
        (INSTANCES, 2),
        ("dynamic_batching", 2),
    ]


def test_without_a_batcher_each_request_is_a_batch() -> None:
    config = {key: value for key, value in _ONNX.items() if key != "dynamic_batching"}
    assert defaults_of(config).max_batch == 1
    assert defaults_of(_ONNX).max_batch == 12
    assert defaults_of(_ONNX).instances == 2


def test_all_candidates_of_model_analyzer_batch_where_it_is_legal() -> None:
    limits = Limits(vary=frozenset(MODEL_ANALYZER), always_batched=True)
    lone = {"max_batch_size": 8, "backend": "python"}
    assert _values(lone, limits)[DELAY] == ((0,), OFF)
    space = Space(model_settings("m", lone, limits))
    assert [each.value("m", DELAY, "") for each in space.all()] == [OFF, *[0] * 40]
    assert space.size == 41
    changes: list[dict[str, Any]] = [
        {"max_batch_size": 0},
        {"sequence_batching": {}},
        {"dynamic_batching": {}},
        {"ensemble_scheduling": {"step": []}},
    ]
    for change in changes:
        assert DELAY not in _values({**lone, **change}, limits)


def test_the_largest_batch_holds_what_clients_send() -> None:
    limits = replace(_ALL, batches=(1, 32), rows=6)
    assert _values(_ONNX, limits)[MAX_BATCH] == ((8, 12, 16, 32), 12)
    (listed,) = listed_settings("m", _ONNX, {MAX_BATCH: [1, 4, 6, 64]}, rows=6)
    assert listed.values == (6, 12, 64)
