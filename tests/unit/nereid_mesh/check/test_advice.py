"""What is said about configurations that load."""

from __future__ import annotations

import pytest

from nereid.backends import ModelDescription, TensorDescription
from nereid.facts.batching import batching_of
from nereid.facts.findings import Severity
from nereid.model_config import parse_config
from nereid.pb.model_config_pb2 import ModelConfig
from nereid_mesh.check.advice import advise

_X = 'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }'
_Y = 'output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }'
_DYNAMIC = "dynamic_batching { max_queue_delay_microseconds: 100 }"


def config(text: str) -> ModelConfig:
    return parse_config(f'name: "m" {text}', model_name="m")


def codes(text: str, description: ModelDescription | None = None) -> list[str]:
    return [each.code for each in advise(config(text), description)]


def file_of(first_dim: int) -> ModelDescription:
    tensors = (TensorDescription("x", "FP32", (first_dim, 4)),)
    return ModelDescription(tensors, tensors)


def test_batches_that_change_results_are_noted() -> None:
    batched = f"max_batch_size: 8 {_X} {_Y} {_DYNAMIC}"
    quantizing = file_of(-1)._replace(mixes_rows=True)
    assert codes(batched, quantizing) == ["batching-changes-results"]
    assert codes(f"max_batch_size: 1 {_X} {_Y}", quantizing) == ["no-batching"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"max_batch_size: 8 {_X} {_Y} {_DYNAMIC}", []),
        (f"max_batch_size: 8 {_X} {_Y} dynamic_batching {{ }}", ["no-queue-delay"]),
        (f"max_batch_size: 8 {_X} {_Y}", ["no-dynamic-batching"]),
        (f"{_X} {_Y}", ["no-batching"]),
        (f"{_X} {_Y} {_DYNAMIC}", ["dynamic-batching-of-one"]),
        ("sequence_batching { }", ["no-batching"]),
        ("max_batch_size: 2 sequence_batching { }", []),
        ('platform: "ensemble" ensemble_scheduling { }', ["ensemble-batching"]),
        (
            f'max_batch_size: 8 {_DYNAMIC} input {{ name: "ids" dims: [ -1 ] }}',
            ["variable-shapes"],
        ),
        (
            (
                f'max_batch_size: 8 {_DYNAMIC} input {{ name: "ids" dims: [ -1 ]'
                " allow_ragged_batch: true }"
            ),
            [],
        ),
        (
            (
                f'max_batch_size: 8 {_DYNAMIC} input {{ name: "ids" data_type: TYPE_INT64'
                ' dims: [ -1 ] } output { name: "o" data_type: TYPE_INT64 dims: [ -1 ] }'
                ' parameters { key: "padding" value { string_value: "ids[0] -> o[0]: 8 16" } }'
            ),
            ["batches-by-size"],
        ),
        (
            (
                'max_batch_size: 8 input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }'
                " dynamic_batching { max_queue_delay_microseconds: 100 preferred_batch_size: 4 }"
                ' output { name: "o" data_type: TYPE_INT64 dims: [ -1 ] }'
                ' parameters { key: "padding" value { string_value: "ids[0] -> o[0]: 8 16" } }'
                ' parameters { key: "max_batch_tokens" value { string_value: "64" } }'
            ),
            ["tokens-decide"],
        ),
        (
            (
                "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1"
                " default_queue_policy { allow_timeout_override: true } }"
            ),
            ["timeout-override"],
        ),
        (
            (
                f'max_batch_size: 8 {_DYNAMIC} input {{ name: "x" dims: [ -1, 4 ] }}'
                ' output { name: "y" dims: [ -1, 2 ] }'
            ),
            ["variable-shapes", "batch-dimension-in-dims"],
        ),
        (
            "max_batch_size: 2 sequence_batching { } response_cache { enable: true }",
            ["cache-of-sequences"],
        ),
        (
            (
                f'max_batch_size: 8 {_DYNAMIC} {_X} model_warmup {{ name: "w" inputs {{'
                ' key: "X" value { } } }'
            ),
            ["warmup-skipped", "warmup-input"],
        ),
        (
            (
                f'max_batch_size: 8 {_DYNAMIC} parameters {{ key: "at-most-once" value {{'
                ' string_value: "true" } }'
            ),
            ["unknown-parameter"],
        ),
    ],
    ids=[
        "batches",
        "no delay",
        "no dynamic batching",
        "no batch size",
        "dynamic batching of one",
        "sequences one by one",
        "sequences",
        "ensemble",
        "variable",
        "ragged",
        "padded",
        "tokens",
        "timeout override",
        "batch in dims",
        "cached sequences",
        "warm-up",
        "parameter",
    ],
)
def test_each_trap_is_named_once(text: str, expected: list[str]) -> None:
    assert codes(text) == expected


def test_what_it_takes_to_batch_depends_on_the_file() -> None:
    hints = [
        advise(config(f"{_X} {_Y}"), description)[0].hint
        for description in (None, file_of(-1), file_of(3))
    ]
    assert hints[0].startswith("if the model executes several rows")
    assert hints[1].startswith("the model file has a variable first dimension")
    assert "gives 'x' the shape [3,4]" in hints[2]


def test_only_what_was_probably_not_meant_is_a_warning() -> None:
    def severity(text: str) -> Severity:
        return advise(config(text), None)[0].severity

    assert severity(f"{_X} {_Y}") is Severity.NOTE
    assert severity(f"max_batch_size: 8 {_X} {_Y}") is Severity.WARNING
    assert severity(f"{_X} {_Y} {_DYNAMIC}") is Severity.WARNING


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ensemble_scheduling { }", "ensemble"),
        ("sequence_batching { }", "sequence"),
        ("max_batch_size: 2 dynamic_batching { }", "dynamic"),
        ("max_batch_size: 1 dynamic_batching { }", "none"),
    ],
)
def test_batching_of(text: str, kind: str) -> None:
    assert batching_of(config(text)) == kind


_TARGET = 'parameters { key: "target_p99_us" value { string_value: "50000" } }'
_ADMISSION = 'parameters { key: "admission_target_ms" value { string_value: "20" } }'
_SIZE_AND_DELAY = "preferred_batch_size: 4 max_queue_delay_microseconds: 9"
_DECOUPLED = "model_transaction_policy { decoupled: true }"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_batch_size: 8 dynamic_batching { }", ""),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: 8 }", ""),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 }", "preferred_batch_size"),
        (f"max_batch_size: 8 {_DYNAMIC}", "max_queue_delay_microseconds"),
        (
            f"max_batch_size: 8 dynamic_batching {{ }} {_ADMISSION}",
            "admission_target_ms",
        ),
        (
            f"max_batch_size: 8 dynamic_batching {{ {_SIZE_AND_DELAY} }}",
            "preferred_batch_size and max_queue_delay_microseconds",
        ),
    ],
)
def test_a_target_decides_what_is_set_beside_it(text: str, expected: str) -> None:
    found = [each for each in advise(config(f"{text} {_TARGET}"), None) if "target" in each.code]
    messages = [each.message for each in found]
    assert messages == (
        [f"{expected} without effect: the parameter target_p99_us decides instead"]
        if expected
        else []
    )
    # A queue delay is not proposed where the target decides it.
    assert "no-queue-delay" not in codes(f"{text} {_TARGET}")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("max_batch_size: 8 sequence_batching { }", "sequences"),
        ('platform: "ensemble" ensemble_scheduling { }', "an ensemble"),
        (f"max_batch_size: 8 dynamic_batching {{ }} {_DECOUPLED}", "a decoupled model"),
    ],
)
def test_a_target_has_no_effect_on_some_models(text: str, kind: str) -> None:
    (found,) = [each for each in advise(config(f"{text} {_TARGET}"), None) if "target" in each.code]
    assert (found.code, found.severity) == ("target-without-effect", Severity.WARNING)
    assert found.message.startswith(f"the parameter target_p99_us has no effect on {kind}")
