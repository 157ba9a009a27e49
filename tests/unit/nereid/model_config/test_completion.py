"""complete_config: defaults, and what the model file adds, by Triton's rules."""

from __future__ import annotations

from typing import Any

import pytest

from nereid.backends import ModelDescription, TensorDescription
from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import CONFIG_NUMBER
from nereid.model_config import (
    CompletionSettings,
    complete_config,
    parse_config,
)
from nereid.pb import model_config_pb2

FP32 = model_config_pb2.TYPE_FP32
INT64 = model_config_pb2.TYPE_INT64

Dims = tuple[int, ...] | None


def graph(
    inputs: dict[str, Dims], outputs: dict[str, Dims], optional: tuple[str, ...] = ()
) -> ModelDescription:
    return ModelDescription(
        tuple(TensorDescription(n, "FP32", d, n in optional) for n, d in inputs.items()),
        tuple(TensorDescription(n, "INT64", d) for n, d in outputs.items()),
    )


BATCHED = graph({"x": (-1, 4)}, {"y": (-1,)})
FIXED = graph({"x": (3, 4)}, {"y": ()})
X = 'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }'
Y = 'output { name: "y" data_type: TYPE_INT64 dims: [ 1 ] reshape { } }'


def complete(
    text: str,
    description: ModelDescription | None = None,
    settings: CompletionSettings | None = None,
) -> model_config_pb2.ModelConfig:
    config = parse_config(f'backend: "onnxruntime" {text}', model_name="m")
    before = config.SerializeToString(deterministic=True)
    completed = complete_config(
        config,
        model_name="m",
        description=description,
        settings=settings or CompletionSettings(),
    )
    assert config.SerializeToString(deterministic=True) == before
    return completed


def error_status(text: str, description: ModelDescription | None = None) -> str:
    with pytest.raises(InvalidArgument) as caught:
        complete(text, description)
    return caught.value.message


def tensors(config: model_config_pb2.ModelConfig) -> dict[str, tuple[int, list[int]]]:
    found: list[Any] = [*config.input, *config.output]
    return {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in found}


def test_defaults_are_set() -> None:
    config = complete("")
    assert config.name == "m"
    assert config.platform == "onnxruntime_onnx"
    assert config.default_model_filename == "model.onnx"
    assert config.version_policy.latest.num_versions == 1
    assert config.optimization.input_pinned_memory.enable
    assert config.optimization.output_pinned_memory.enable
    assert config.WhichOneof("scheduling_choice") is None
    assert not config.instance_group


def test_what_is_written_is_kept() -> None:
    config = complete(
        "version_policy { all { } } optimization { input_pinned_memory { enable: false } } "
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4 ] }"
    )
    assert config.version_policy.HasField("all")
    assert not config.optimization.input_pinned_memory.enable
    assert list(config.dynamic_batching.preferred_batch_size) == [4]


@pytest.mark.parametrize(
    ("scheduler", "refused"),
    [
        ("dynamic_batching { preferred_batch_size: [%d] }", "dynamic batching preferred size"),
        (
            "sequence_batching { oldest { preferred_batch_size: [%d] } }",
            "sequence batching preferred batch size",
        ),
    ],
)
def test_preferred_sizes_are_compared_with_the_batch_size_that_is_completed(
    scheduler: str, refused: str
) -> None:
    settings = CompletionSettings(default_max_batch_size=8)
    config = complete(scheduler % 8, BATCHED, settings)
    assert config.max_batch_size == 8
    assert complete(scheduler % 8).max_batch_size == 0
    text = f"{refused} must be <= max batch size for m"
    assert error_status(scheduler % 8, BATCHED) == text
    assert error_status(scheduler % 8, FIXED) == text
    # Nothing is left to be completed.
    assert error_status(f"{X} {Y} {scheduler % 8}") == text


@pytest.mark.parametrize(("max_batch_size", "expected"), [(8, [8]), (0, [])])
def test_the_preferred_size_is_the_largest(max_batch_size: int, expected: list[int]) -> None:
    text = f"max_batch_size: {max_batch_size}"
    config = complete(f"{text} dynamic_batching {{ }}")
    assert list(config.dynamic_batching.preferred_batch_size) == expected
    config = complete(f"{text} sequence_batching {{ oldest {{ }} }}")
    assert list(config.sequence_batching.oldest.preferred_batch_size) == expected


def test_sequences_are_idle_for_a_second_at_most() -> None:
    config = complete("sequence_batching { direct { } }")
    assert config.sequence_batching.max_sequence_idle_microseconds == 1_000_000
    config = complete("sequence_batching { max_sequence_idle_microseconds: 7 }")
    assert config.sequence_batching.max_sequence_idle_microseconds == 7


def test_the_directory_must_have_the_models_name() -> None:
    assert error_status('name: "other"') == (
        "unexpected directory name 'm' for model 'other', directory name must equal model name"
    )


def test_an_invalid_configuration_is_refused_without_the_model_file() -> None:
    assert error_status("max_batch_size: -1") == "'max_batch_size' must be non-negative value for m"


def test_a_batchable_graph_gets_a_batch_size_and_the_dynamic_batcher() -> None:
    config = complete("", BATCHED)
    assert config.max_batch_size == 4
    assert list(config.dynamic_batching.preferred_batch_size) == [4]
    assert tensors(config) == {"x": (FP32, [4]), "y": (INT64, [1])}
    assert not config.input[0].HasField("reshape")
    assert config.output[0].HasField("reshape")
    assert not config.output[0].reshape.shape


@pytest.mark.parametrize(("default", "batching"), [(1, False), (0, False), (-3, False), (2, True)])
def test_the_default_batch_size_is_a_setting(default: int, batching: bool) -> None:
    description = graph({"x": (-1, 4)}, {"y": (-1, 2)})
    config = complete("", description, CompletionSettings(default_max_batch_size=default))
    assert config.max_batch_size == max(default, 0)
    assert config.HasField("dynamic_batching") is batching


@pytest.mark.parametrize(
    "description",
    [FIXED, graph({"x": (-1, 4)}, {"y": (2, 2)}), graph({"x": ()}, {"y": (-1, 1)})],
)
def test_a_graph_that_cannot_batch_is_taken_as_it_is(description: ModelDescription) -> None:
    config = complete("", description)
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    for tensor in (*description.inputs, *description.outputs):
        expected = list(tensor.dims or (1,))
        assert tensors(config)[tensor.name] == (CONFIG_NUMBER[tensor.datatype], expected)


def test_a_tensor_of_unknown_rank_is_not_batched_and_any_written_dims_fit() -> None:
    description = graph({"x": (-1, 4)}, {"y": None})
    assert tensors(complete("", description)) == {"x": (FP32, [-1, 4]), "y": (INT64, [-1])}
    text = f'max_batch_size: 2 {X} output {{ name: "y" data_type: TYPE_INT64 dims: [ 7, 8 ] }}'
    assert tensors(complete(text, description))["y"] == (INT64, [7, 8])


def test_a_written_batch_size_needs_a_graph_that_can_batch() -> None:
    assert error_status("max_batch_size: 2", FIXED) == (
        "autofill failed for model 'm': model does not support batching while non-zero "
        "max_batch_size is specified"
    )


@pytest.mark.parametrize("scheduler", ["", "sequence_batching { }", "dynamic_batching { }"])
def test_a_written_batch_size_turns_the_dynamic_batcher_on_unless_another_is_written(
    scheduler: str,
) -> None:
    config = complete(f"max_batch_size: 2 {scheduler}", BATCHED)
    assert config.max_batch_size == 2
    assert config.HasField("dynamic_batching") is ("sequence" not in scheduler)


def test_with_inputs_and_outputs_written_batching_is_as_written() -> None:
    config = complete(
        'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } '
        'output { name: "y" data_type: TYPE_INT64 dims: [ -1 ] }',
        BATCHED,
    )
    assert config.max_batch_size == 0
    assert config.WhichOneof("scheduling_choice") is None
    config = complete(f"max_batch_size: 8 {X} {Y}", BATCHED)
    assert config.WhichOneof("scheduling_choice") is None


@pytest.mark.parametrize("written", [X, Y])
def test_only_the_missing_side_is_filled_in(written: str) -> None:
    config = complete(f"max_batch_size: 2 {written}", BATCHED)
    assert tensors(config) == {"x": (FP32, [4]), "y": (INT64, [1])}
    assert config.HasField("dynamic_batching")


def test_a_named_tensor_is_filled_in() -> None:
    config = complete('input { name: "x" } output { name: "y" label_filename: "l" }', BATCHED)
    assert config.max_batch_size == 4
    assert tensors(config) == {"x": (FP32, [4]), "y": (INT64, [1])}
    assert config.output[0].label_filename == "l"


def test_dims_of_full_rank_mean_no_batching() -> None:
    config = complete('input { name: "x" dims: [ -1, 4 ] } output { name: "y" }', BATCHED)
    assert config.max_batch_size == 0
    assert tensors(config) == {"x": (FP32, [-1, 4]), "y": (INT64, [-1])}


def test_dims_without_the_batch_dimension_mean_batching() -> None:
    assert complete('input { name: "x" dims: [ 4 ] }', BATCHED).max_batch_size == 4


def test_a_ragged_input_has_full_rank_and_is_batched_all_the_same() -> None:
    config = complete(
        'input { name: "x" dims: [ -1 ] allow_ragged_batch: true }',
        graph({"x": (-1,)}, {"y": (-1, 2)}),
    )
    assert config.max_batch_size == 4


def test_dims_are_not_guessed_where_a_reshape_is_written() -> None:
    assert error_status('input { name: "x" reshape { shape: [ 4 ] } }', BATCHED) == (
        "model input 'x' must specify 'dims' for m"
    )


def test_a_name_that_the_graph_does_not_have_is_not_filled_in() -> None:
    assert error_status('input { name: "z" } output { name: "y" }', BATCHED) == (
        "model input 'z' must specify 'data_type' for m"
    )


def test_optional_inputs_and_the_sequence_batchers_tensors_are_hidden() -> None:
    description = graph(
        {"x": (-1, 4), "w": (4,), "START": (-1, 1), "s_in": (-1, 2)},
        {"y": (-1, 2), "s_out": (-1, 2)},
        optional=("w",),
    )
    config = complete(
        'sequence_batching { control_input { name: "START" control { '
        "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } "
        'state { input_name: "s_in" output_name: "s_out" data_type: TYPE_FP32 dims: [ 2 ] } }',
        description,
    )
    assert set(tensors(config)) == {"x", "y"}


def test_completion_can_be_switched_off() -> None:
    settings = CompletionSettings(disable_auto_complete=True)
    config = complete(f"max_batch_size: 2 {X} {Y}", BATCHED, settings)
    assert not config.HasField("dynamic_batching")
    with pytest.raises(InvalidArgument) as caught:
        complete("", BATCHED, settings)
    assert caught.value.message == (
        "unable to load model 'm', configuration expects 0 inputs, model provides 1"
    )


def test_an_ensemble_gets_no_optimization() -> None:
    config = parse_config(
        'platform: "ensemble" input { name: "X" } output { name: "Y" } ensemble_scheduling { step '
        '{ model_name: "a" input_map { key: "i" value: "X" } output_map { key: "o" value: "Y" } '
        "} }",
        model_name="e",
    )
    completed = complete_config(config, model_name="e", description=None)
    assert not completed.HasField("optimization")
    assert completed.version_policy.latest.num_versions == 1
