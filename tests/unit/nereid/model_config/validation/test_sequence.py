"""The rules for sequence batching."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import complete_config, parse_config


def check(text: str) -> str | None:
    config = parse_config(
        f'backend: "python" max_batch_size: 4 sequence_batching {{ {text} }}', model_name="m"
    )
    try:
        complete_config(config, model_name="m", description=None)
    except InvalidArgument as error:
        return error.message
    return None


def control(kind: str, body: str = "", name: str = "c") -> str:
    return f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {body} }} }} '


PAIR = "int32_false_true: [ 0, 1 ]"


@pytest.mark.parametrize(
    "text",
    [
        "",
        control("START", PAIR, "s")
        + control("END", "fp32_false_true: [ 0, 1 ]", "e")
        + control("READY", "bool_false_true: [ false, true ]", "r")
        + control("CORRID", "data_type: TYPE_STRING", "i"),
        "direct { minimum_slot_utilization: 1 }",
        "oldest { preferred_batch_size: [ 1, 4 ] }",
    ],
)
def test_a_valid_configuration_is_accepted(text: str) -> None:
    assert check(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            control("START", PAIR, ""),
            "sequence batching control tensor must have a name for m",
        ),
        (
            control("START", PAIR) + control("END", PAIR),
            "sequence batching control tensor 'c' is specified for multiple control kinds for m",
        ),
        (
            control("START", PAIR, "a") + control("START", PAIR, "b"),
            "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
        ),
        (
            control("CORRID", "data_type: TYPE_INT32", "a") + control("CORRID", "", "b"),
            "sequence batching specifies multiple CONTROL_SEQUENCE_CORRID tensors for m",
        ),
        (
            control("READY"),
            (
                "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
                "'bool_false_true' for CONTROL_SEQUENCE_READY for m"
            ),
        ),
        (
            control("END", PAIR + " bool_false_true: [ false, true ]"),
            (
                "sequence batching specifies more than one from 'int32_false_true', "
                "'fp32_false_true' and 'bool_false_true' for CONTROL_SEQUENCE_END for m"
            ),
        ),
        (
            control("START", "fp32_false_true: [ 0 ]"),
            (
                "sequence batching control 'fp32_false_true' must have exactly 2 entries for "
                "CONTROL_SEQUENCE_START for m"
            ),
        ),
        (
            control("CORRID", PAIR),
            (
                "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' "
                "or 'bool_false_true' for CONTROL_SEQUENCE_CORRID for m"
            ),
        ),
        (
            control("CORRID", "data_type: TYPE_FP32"),
            (
                "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data "
                "types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
            ),
        ),
        (
            "oldest { preferred_batch_size: 0 }",
            "sequence batching preferred batch size must be positive for m",
        ),
        (
            "oldest { preferred_batch_size: 5 }",
            "sequence batching preferred batch size must be <= max batch size for m",
        ),
        *(
            (
                f"direct {{ minimum_slot_utilization: {utilization} }}",
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
            )
            for utilization in ("1.01", "-0.1", "nan")
        ),
    ],
)
def test_an_invalid_configuration_is_refused(text: str, expected: str) -> None:
    assert check(text) == expected


STATE = 'state { input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: 1 }'
NEEDS = "needs a state in sequence_batching, and a model that is neither decoupled nor iterative"
DECOUPLED = "} model_transaction_policy { decoupled: true"


@pytest.mark.parametrize(
    ("value", "state", "backend", "error"),
    [
        ("1", STATE, "onnxruntime", None),
        ("0", "", "python", None),
        ("1", "", "onnxruntime", NEEDS),
        ("1", STATE, "python", None),
        ("1", STATE + "iterative_sequence: true", "python", NEEDS),
        ("1", STATE + DECOUPLED, "python", NEEDS),
        ("0", STATE + DECOUPLED, "python", None),
        ("often", STATE, "onnxruntime", "expected a number of requests but got 'often'"),
        ("-1", STATE, "onnxruntime", "expected a number of requests but got '-1'"),
        ("1" * 20, STATE, "onnxruntime", f"expected a number of requests but got '{'1' * 20}'"),
    ],
)
def test_snapshots_need_a_number_and_a_state_that_moves(
    value: str, state: str, backend: str, error: str | None
) -> None:
    parameter = "sequence_snapshot_interval"
    text = (
        f'name: "m" backend: "{backend}" sequence_batching {{ {state} }}'
        f' parameters {{ key: "{parameter}" value {{ string_value: "{value}" }} }}'
    )
    config = parse_config(text, model_name="m")
    if error is None:
        complete_config(config, model_name="m", description=None)
    else:
        with pytest.raises(InvalidArgument) as caught:
            complete_config(config, model_name="m", description=None)
        assert caught.value.message.startswith(f"parameter '{parameter}' of model 'm'")
        assert caught.value.message.endswith(error)
