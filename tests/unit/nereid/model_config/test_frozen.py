"""The frozen configuration."""

from __future__ import annotations

import dataclasses

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import (
    DynamicBatching,
    InputSpec,
    ModelConfig,
    OutputSpec,
    QueuePolicy,
    complete_config,
    freeze_config,
    parse_config,
)


def frozen(text: str) -> ModelConfig:
    config = parse_config(f'backend: "onnxruntime" {text}', model_name="m")
    return freeze_config(complete_config(config, model_name="m", description=None))


def test_a_bare_configuration_has_the_defaults() -> None:
    config = frozen("")
    assert (config.name, config.backend, config.platform) == (
        "m",
        "onnxruntime",
        "onnxruntime_onnx",
    )
    assert config.max_batch_size == 0
    assert config.batching is None
    assert not (config.inputs)
    assert not (config.outputs)
    assert not config.decoupled
    assert not config.response_cache


def test_tensors() -> None:
    config = frozen(
        'max_batch_size: 2 input { name: "a" data_type: TYPE_STRING dims: [ -1 ] '
        "allow_ragged_batch: true optional: true } "
        'input { name: "b" data_type: TYPE_BF16 dims: [ 1 ] reshape { } } '
        'output { name: "c" data_type: TYPE_UINT8 dims: [ 4 ] reshape { shape: [ 2, 2 ] } }'
    )
    assert config.inputs == (
        InputSpec("a", "BYTES", (-1,), optional=True, allow_ragged=True),
        InputSpec("b", "BF16", (1,), reshape=()),
    )
    assert config.outputs == (OutputSpec("c", "UINT8", (4,), reshape=(2, 2)),)


def test_dynamic_batching() -> None:
    config = frozen(
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 8, 2, 8 ] "
        "max_queue_delay_microseconds: 100 priority_levels: 3 default_priority_level: 2 "
        "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 } "
        "priority_queue_policy { key: 3 value { allow_timeout_override: true max_queue_size: 9 } } "
        "}"
    )
    assert config.batching == DynamicBatching(
        preferred_batch_sizes=(2, 8),
        max_queue_delay_us=100,
        priority_levels=3,
        default_priority_level=2,
        default_queue_policy=QueuePolicy("DELAY", 5),
        priority_queue_policies={3: QueuePolicy("REJECT", 0, True, 9)},
    )


def test_without_priorities_there_are_no_policies_by_level() -> None:
    config = frozen(
        "dynamic_batching { preserve_ordering: true "
        "priority_queue_policy { key: 3 value { max_queue_size: 9 } } }"
    )
    assert config.batching == DynamicBatching(preserve_ordering=True)


def test_how_it_responses() -> None:
    assert frozen("model_transaction_policy { decoupled: true }").decoupled
    assert frozen("response_cache { enable: true }").response_cache


def test_it_cannot_be_changed_and_keeps_a_message_of_its_own() -> None:
    source = parse_config('backend: "onnxruntime"', model_name="m")
    completed = complete_config(source, model_name="m", description=None)
    config = freeze_config(completed)
    completed.max_batch_size = 9
    assert config.proto.max_batch_size == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.max_batch_size = 1  # type: ignore[misc]


def test_an_invalid_configuration_is_not_frozen() -> None:
    with pytest.raises(InvalidArgument, match="must specify 'dims' for m"):
        frozen('input { name: "x" data_type: TYPE_FP32 }')
