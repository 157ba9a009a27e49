"""validate_config: each rule with its text, which is Triton's."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import complete_config, parse_config, validate_config

X = 'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }\n'
Y = 'output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }\n'


def check(text: str, *, complete: bool = True) -> str | None:
    """The error's text, or None."""
    config = parse_config(text, model_name="m")
    if not config.backend and not config.platform:
        config.backend = "python"
    try:
        if complete:
            config = complete_config(config, model_name="m", description=None)
        validate_config(config)
    except InvalidArgument as error:
        return error.message
    return None


@pytest.mark.parametrize(
    "text",
    [
        "",
        X + Y,
        'platform: "anything" backend: "mine"',
        'platform: "tensorflow_graphdef" backend: "tensorflow"',
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 1, 8 ] }",
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 2 "
            "priority_queue_policy { key: 1 value { } } }"
        ),
        (
            "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: "
            "1 default_queue_policy { timeout_action: DELAY } }"
        ),
        "response_cache { enable: true }",
        (
            'model_metrics { metric_control { metric_identifier { family: "f" } '
            "histogram_options { buckets: 1 } } }"
        ),
        "model_warmup { batch_size: 1 }",
        "instance_group { kind: KIND_GPU gpus: 5 }",
        'platform: "tensorrt_plan" instance_group { profile: "0" profile: "12" }',
        (
            'platform: "tensorrt_plan" input { name: "x" data_type: TYPE_FP32 dims: [ 1, 2, 3 ] '
            "is_shape_tensor: true is_non_linear_format_io: true format: FORMAT_NCHW }"
        ),
    ],
)
def test_a_valid_configuration_is_accepted(text: str) -> None:
    assert check(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('platform: "x"', "unexpected platform type 'x' for m"),
        (
            'platform: "ensemble" backend: "python"',
            "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
        ),
        (
            'platform: "x" backend: "onnxruntime"',
            "unexpected 'platform' and 'backend' pair, got:x, onnxruntime",
        ),
        (
            'backend: "tensorflow"',
            "unexpected 'platform' and 'backend' pair, got:, tensorflow",
        ),
        (
            'platform: "ensemble"',
            "ensemble scheduling must be set for ensemble m whose platform is ensemble",
        ),
        ("max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }",
            "dynamic batching preferred size must be positive for m",
        ),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 4, 5 ] }",
            "dynamic batching preferred size must be <= max batch size for m",
        ),
        (
            "dynamic_batching { priority_levels: 2 }",
            "default priority level must be in range [1, 2] for m",
        ),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
            "default priority level must be in range [1, 2] for m",
        ),
        (
            (
                "dynamic_batching { priority_levels: 2 default_priority_level: 1 "
                "priority_queue_policy { key: 3 value { } } }"
            ),
            "priority queue policy must have priority level in range [1, 2] for m",
        ),
        (
            (
                "dynamic_batching { preserve_ordering: true priority_levels: 2 "
                "default_priority_level: 1 }"
            ),
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
        ),
        (
            (
                "dynamic_batching { preserve_ordering: true default_queue_policy { "
                "timeout_action: DELAY default_timeout_microseconds: 1 } }"
            ),
            (
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is "
                "true for m"
            ),
        ),
        (
            (
                "dynamic_batching { preserve_ordering: true priority_queue_policy { key: 1 value { "
                "timeout_action: DELAY default_timeout_microseconds: 1 } } }"
            ),
            (
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is "
                "true for m"
            ),
        ),
        (
            "response_cache { enable: true } sequence_batching { }",
            (
                "Response Cache does not currently support model m with sequence batching "
                "scheduler. Please disable the response cache."
            ),
        ),
        (
            "response_cache { enable: true } model_transaction_policy { decoupled: true }",
            (
                "Response Cache does not currently support model m with 'decoupled' transaction "
                "policy. Please disable the response cache."
            ),
        ),
        (
            "model_metrics { metric_control { } }",
            "metric control must specify 'metric_identifier'",
        ),
        (
            "model_metrics { metric_control { metric_identifier { } } }",
            "metric identifier must specify non-empty 'family'",
        ),
        (
            'model_metrics { metric_control { metric_identifier { family: "f" } } }',
            "metric control must specify 'histogram_options'",
        ),
        (
            (
                'model_metrics { metric_control { metric_identifier { family: "f" } '
                "histogram_options { } } }"
            ),
            "histogram options must specify non-empty 'buckets'",
        ),
        (
            (
                'model_warmup { batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 '
                "dims: [ 2, -1 ] zero_data: true } } }"
            ),
            "warmup setting expects all variable-size dimensions are specified for input 'x'",
        ),
        (
            'model_warmup { batch_size: 1 inputs { key: "x" value { zero_data: true } } }',
            "warmup setting must specify 'data_type' for input 'x'",
        ),
        (
            'model_warmup { batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 } } }',
            (
                "[request id: <id_unknown>] warmup setting expects input 'x' to have "
                "input_data_type set"
            ),
        ),
        (
            "instance_group { } instance_group { kind: KIND_CPU gpus: 0 }",
            "instance group m_1 of model m has kind KIND_CPU but specifies one or more GPUs",
        ),
        (
            'instance_group { name: "g" kind: KIND_MODEL gpus: 0 }',
            "instance group g of model m has kind KIND_MODEL but specifies one or more GPUs",
        ),
        (
            'instance_group { profile: "0" }',
            (
                "instance group m_0 of model m and platform specifies profile field which is only "
                "supported for TensorRT models"
            ),
        ),
        (
            'platform: "tensorrt_plan" instance_group { profile: "" }',
            "profile name must not be empty",
        ),
        (
            'platform: "tensorrt_plan" instance_group { profile: "-1" }',
            (
                "instance group m_0 of model m and platform tensorrt_plan specifies invalid "
                "profile -1. The field should contain the string representation of a non-negative "
                "integer."
            ),
        ),
    ],
)
def test_an_invalid_configuration_is_refused(text: str, expected: str) -> None:
    assert check(text) == expected


def test_an_incomplete_configuration_is_refused() -> None:
    assert check("", complete=False) == "model configuration must specify 'name'"
    assert check('name: "m"', complete=False) == "must specify 'version policy' for m"


@pytest.mark.parametrize(
    ("dims", "reshape"),
    [
        ("1", ""),
        ("1, 1", ""),
        ("16", "4, 4"),
        ("2, 4, -1, 6", "8, -1, 1, 6"),
        ("-1, -1", "-1, 1, -1"),
        ("-1", "-1"),
    ],
)
def test_a_reshape_of_as_many_elements_is_accepted(dims: str, reshape: str) -> None:
    tensor = f'name: "x" data_type: TYPE_FP32 dims: [ {dims} ] reshape {{ shape: [ {reshape} ] }}'
    assert check(f"max_batch_size: 2 input {{ {tensor} }}") is None
    assert check(f"max_batch_size: 2 output {{ {tensor} }}") is None


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        ("data_type: TYPE_FP32 dims: 1", "must specify 'name'"),
        ('name: "x" dims: 1', "'x' must specify 'data_type'"),
        ('name: "x" data_type: 99 dims: 1', "'x' must specify 'data_type'"),
        ('name: "x" data_type: TYPE_FP32', "'x' must specify 'dims'"),
        (
            'name: "x" data_type: TYPE_FP32 dims: 0',
            "'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension",
        ),
        (
            'name: "x" data_type: TYPE_FP32 dims: [ 1, -2 ]',
            "'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension",
        ),
        (
            'name: "x" data_type: TYPE_FP32 dims: 1 reshape { }',
            (
                "'x' cannot have empty reshape for non-batching model as scalar tensors are not "
                "supported"
            ),
        ),
        (
            'name: "x" data_type: TYPE_FP32 dims: 1 reshape { shape: 0 }',
            (
                "'x' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size "
                "dimension"
            ),
        ),
        (
            'name: "x" data_type: TYPE_FP32 dims: 4 reshape { shape: 3 }',
            "'x' has different size for dims and reshape",
        ),
        (
            'name: "x" data_type: TYPE_FP32 dims: [ 4, -1 ] reshape { shape: 4 }',
            "'x' has different size for dims and reshape",
        ),
        (
            'name: "x" data_type: TYPE_FP32 dims: [ 4, -1 ] reshape { shape: [ -1, 4 ] }',
            "'x' has different size for dims and reshape",
        ),
        (
            'name: "x" data_type: TYPE_FP32 dims: [ -1 ] reshape { shape: [ -1, -1 ] }',
            "'x' has different number of variable-size dimensions for dims and reshape",
        ),
    ],
)
@pytest.mark.parametrize("role", ["input", "output"])
def test_invalid_tensors_are_refused(role: str, tensor: str, expected: str) -> None:
    assert check(f"{role} {{ {tensor} }}") == f"model {role} {expected} for m"


TENSOR = 'name: "x" data_type: TYPE_FP32 dims: 1'
BATCH_OUTPUT = 'batch_output { target_name: "y" source_input: "x" }'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"input {{ {TENSOR} format: FORMAT_NHWC }}",
            "model input NHWC/NCHW require 3 dims",
        ),
        (
            f"input {{ {TENSOR} is_shape_tensor: true }}",
            "shape tensors are only supported for TensorRT platform",
        ),
        (
            f"output {{ {TENSOR} is_shape_tensor: true }}",
            "shape tensors are only supported for TensorRT platform",
        ),
        (
            f"output {{ {TENSOR} is_non_linear_format_io: true }}",
            "Non-linear IO format is only supported for the TensorRT platform",
        ),
        (
            f'platform: "tensorrt_plan" input {{ {TENSOR} is_non_linear_format_io: true }}',
            "Non-linear IO format input requires 3 dims",
        ),
        (
            f"input {{ {TENSOR} }} input {{ {TENSOR} }}",
            "model input 'x' is specified more than once",
        ),
        (
            f"output {{ {TENSOR} }} output {{ {TENSOR} }}",
            "model output 'x' is specified more than once",
        ),
        (
            "batch_input { kind: BATCH_ITEM_SHAPE }",
            "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0",
        ),
        ('batch_input { kind: 77 source_input: "x" }', "unknown batch input kind '77'"),
        (
            'batch_input { source_input: "x" data_type: TYPE_INT64 }',
            "batch input data type must be TYPE_INT32 or TYPE_FP32",
        ),
        (
            'batch_input { source_input: "z" data_type: TYPE_INT32 }',
            "unknown source input name 'z'",
        ),
        (
            'batch_output { source_input: [ "x", "x" ] }',
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 2",
        ),
        ('batch_output { kind: 77 source_input: "x" }', "unknown batch output kind '77'"),
        (f"{X} {BATCH_OUTPUT}", "unknown target output name 'y'"),
        (f"{Y} {BATCH_OUTPUT}", "unknown source input name 'x'"),
        (
            f'{X} {Y} batch_output {{ target_name: [ "y", "y" ] source_input: "x" }}',
            "target output name 'y' can only be specified once",
        ),
    ],
)
def test_rules_across_tensors(text: str, expected: str) -> None:
    assert check(text) == f"{expected} for m"


def test_batch_inputs_and_outputs_are_accepted() -> None:
    batch_input = 'batch_input { target_name: "i" source_input: "x" data_type: TYPE_FP32 }'
    assert check(X + Y + batch_input + BATCH_OUTPUT) is None


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("true", None),
        ("0", None),
        ("", "expected true or false but got ''"),
        ("maybe", "expected true or false but got 'maybe'"),
    ],
)
def test_at_most_once_is_true_or_false(value: str, error: str | None) -> None:
    text = f'parameters {{ key: "at_most_once" value {{ string_value: "{value}" }} }}'
    expected = None if error is None else f"parameter 'at_most_once' of model 'm': {error}"
    assert check(text) == expected


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("0", None),
        ("250", None),
        ("-1", "expected a whole number at least 0 but got '-1'"),
        ("1.5", "expected a whole number but got '1.5'"),
    ],
)
@pytest.mark.parametrize("name", ["admission_target_ms", "target_p99_us"])
def test_targets_are_whole_numbers(name: str, value: str, error: str | None) -> None:
    text = f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'
    expected = None if error is None else f"parameter '{name}' of model 'm': {error}"
    assert check(text) == expected
