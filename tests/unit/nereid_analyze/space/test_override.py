from typing import Any

import pytest

from nereid_analyze.space.candidate import DELAY, INSTANCES, MAX_BATCH, PREFERRED, Value
from nereid_analyze.space.override import OFF, UNSET, overridden

_CONFIG: dict[str, Any] = {
    "max_batch_size": 64,
    "instance_group": [{"name": "m_0", "kind": "KIND_GPU", "count": 1, "gpus": [0]}],
    "dynamic_batching": {"preferred_batch_size": [16, 64], "max_queue_delay_microseconds": 0},
    "parameters": {"a": {"string_value": "1"}},
    "model_warmup": [{"name": "w", "batch_size": 64}],
}


@pytest.mark.parametrize(
    ("values", "changed"),
    [
        ({}, {}),
        ({INSTANCES: 3}, {"instance_group": [{**_CONFIG["instance_group"][0], "count": 3}]}),
        (
            {MAX_BATCH: 32},
            {
                "max_batch_size": 32,
                "dynamic_batching": {**_CONFIG["dynamic_batching"], "preferred_batch_size": [16]},
                "model_warmup": [{"name": "w", "batch_size": 32}],
            },
        ),
        (
            {DELAY: 500},
            {
                "dynamic_batching": {
                    **_CONFIG["dynamic_batching"],
                    "max_queue_delay_microseconds": 500,
                }
            },
        ),
        (
            {"parameters.b": 2},
            {"parameters": {"a": {"string_value": "1"}, "b": {"string_value": "2"}}},
        ),
        ({"parameters.a": UNSET}, {"parameters": {}}),
        (
            {"dynamic_batching": '{"max_queue_delay_microseconds": 7}'},
            {
                "dynamic_batching": {
                    **_CONFIG["dynamic_batching"],
                    "max_queue_delay_microseconds": 7,
                }
            },
        ),
        ({"instance_group": '[{"count": 2}]'}, {"instance_group": [{"count": 2}]}),
    ],
)
def test_values_are_where_the_configuration_has_them(
    values: dict[str, Value], changed: dict[str, Any]
) -> None:
    assert overridden(_CONFIG, values) == {**_CONFIG, **changed}


def test_without_a_batcher_there_is_none() -> None:
    assert "dynamic_batching" not in overridden(_CONFIG, {DELAY: OFF, PREFERRED: "half"})


def test_only_on_the_cpu() -> None:
    (group,) = overridden(_CONFIG, {INSTANCES: 2}, cpu_only=True)["instance_group"]
    assert (group["kind"], group["gpus"], group["count"]) == ("KIND_CPU", [], 2)


def test_what_was_given_is_not_changed() -> None:
    before = repr(_CONFIG)
    overridden(_CONFIG, {MAX_BATCH: 1, INSTANCES: 2, "parameters.a": 3})
    assert repr(_CONFIG) == before
