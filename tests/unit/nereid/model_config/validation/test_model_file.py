"""A configuration against the model file."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import (
    ModelDescription,
    TensorDescription,
    complete_config,
    parse_config,
)
from nereid.pb import model_config_pb2

FP32 = model_config_pb2.TYPE_FP32
STRING = model_config_pb2.TYPE_STRING

Dims = tuple[int, ...] | None


def check(
    text: str, x: Dims, y: Dims = (-1, 2), more: tuple[TensorDescription, ...] = ()
) -> str | None:
    """The fault that is found, or None."""
    description = ModelDescription(
        (TensorDescription("x", FP32, x), *more), (TensorDescription("y", STRING, y),)
    )
    config = parse_config(f'backend: "onnxruntime" {text}', model_name="m")
    try:
        complete_config(config, model_name="m", description=description)
    except InvalidArgument as error:
        return error.message
    return None


def tensor(role: str, dims: str, name: str = "", more: str = "") -> str:
    name = name or ("x" if role == "input" else "y")
    datatype = "TYPE_FP32" if role == "input" else "TYPE_STRING"
    return f'{role} {{ name: "{name}" data_type: {datatype} dims: [ {dims} ] {more} }}'


Y = tensor("output", "-1, 2")
BATCHED_Y = "max_batch_size: 2 " + tensor("output", "2")


@pytest.mark.parametrize(
    ("dims", "graph"),
    [("-1, 4", (-1, 4)), ("3, 4", (-1, 4)), ("1, 1", (1, 1)), ("1", ()), ("1, 1", ()), ("5", None)],
)
def test_what_agrees_is_accepted(dims: str, graph: Dims) -> None:
    assert check(Y + tensor("input", dims), graph) is None


@pytest.mark.parametrize(
    ("dims", "more", "graph"),
    [
        ("4", "", (-1, 4)),
        ("3, 4", "", (-1, -1, -1)),
        ("1", "reshape { }", (-1,)),
        ("4, 4", "reshape { shape: [ 16 ] }", (-1, 16)),
    ],
)
def test_what_agrees_but_for_the_batch_dimension_is_accepted(
    dims: str, more: str, graph: Dims
) -> None:
    assert check(BATCHED_Y + tensor("input", dims, more=more), graph) is None


@pytest.mark.parametrize(("dims", "graph"), [("-1, 2", (-1, -1)), ("3, 2", (-1, 2)), ("-1", (7,))])
def test_an_output_may_be_open_on_either_side(dims: str, graph: Dims) -> None:
    assert check(tensor("input", "4") + tensor("output", dims), (4,), graph) is None


@pytest.mark.parametrize(
    ("text", "x", "expected"),
    [
        (
            Y + tensor("input", "5"),
            (4,),
            (
                "model 'm', tensor 'x': the model expects 1 dimensions (shape [4]) but the model "
                "configuration specifies 1 dimensions (shape [5])"
            ),
        ),
        (
            Y + tensor("input", "-1, 4"),
            (3, 4),
            (
                "model 'm', tensor 'x': the model expects 2 dimensions (shape [3,4]) but the model "
                "configuration specifies 2 dimensions (shape [-1,4])"
            ),
        ),
        (
            BATCHED_Y + tensor("input", "5"),
            (-1, 4),
            (
                "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,4]) but the "
                "model configuration specifies 2 dimensions (an initial batch dimension because "
                "max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
                "[-1,5])"
            ),
        ),
        (
            BATCHED_Y + tensor("input", "4"),
            (1, 4),
            (
                "model 'm', tensor 'x': for the model to support batching the shape should have at "
                "least 1 dimension and the first dimension must be -1; but shape expected by the "
                "model is [1,4]"
            ),
        ),
        (
            BATCHED_Y + tensor("input", "4"),
            (),
            (
                "model 'm', tensor 'x': for the model to support batching the shape should have at "
                "least 1 dimension and the first dimension must be -1; but shape expected by the "
                "model is []"
            ),
        ),
        (
            Y + tensor("input", "2"),
            (),
            (
                "unable to load model 'm', scalar tensor 'x', should only provide 1 in the model "
                "configuration when the model doesn't support batching. Model configuration "
                "provided: [2]."
            ),
        ),
        (
            Y + tensor("input", "4", name="z"),
            (4,),
            "unexpected inference input 'z' for model 'm', allowed inputs are: x",
        ),
        (
            tensor("input", "4") + tensor("output", "4", name="z"),
            (4,),
            "unexpected inference output 'z' for model 'm', allowed outputs are: y",
        ),
        (
            Y + 'input { name: "x" data_type: TYPE_INT64 dims: 4 }',
            (4,),
            (
                "unable to load model 'm', configuration expects datatype TYPE_INT64 for input "
                "'x', model provides TYPE_FP32"
            ),
        ),
        (
            tensor("input", "4") + 'output { name: "y" data_type: TYPE_FP32 dims: 4 }',
            (4,),
            (
                "unable to load model 'm', configuration expects datatype TYPE_FP32 for output "
                "'y', model provides TYPE_STRING"
            ),
        ),
        (
            Y + tensor("input", "4") + tensor("input", "4", name="z"),
            (4,),
            "unable to load model 'm', configuration expects 2 inputs, model provides 1",
        ),
        (
            BATCHED_Y + tensor("input", "-1", more="allow_ragged_batch: true"),
            (-1, 4),
            (
                "unable to load model 'm', configuration expects model provides input with shape "
                "[-1] for ragged input 'x', model provides [-1,4]"
            ),
        ),
    ],
)
def test_what_does_not_agree_is_told_in_tritons_words(text: str, x: Dims, expected: str) -> None:
    assert check(text, x) == expected


def test_a_datatype_that_has_no_name_here_is_told() -> None:
    description = ModelDescription(
        (TensorDescription("x", 99, (4,)),), (TensorDescription("y", STRING, (-1, 2)),)
    )
    config = parse_config(f'backend: "mine" {Y} {tensor("input", "4")}', model_name="m")
    with pytest.raises(InvalidArgument, match=r"model provides TYPE_INVALID$"):
        complete_config(config, model_name="m", description=description)


@pytest.mark.parametrize("graph", [(-1,), None])
def test_a_ragged_input_is_one_long_row(graph: Dims) -> None:
    text = BATCHED_Y + tensor("input", "-1", more="allow_ragged_batch: true")
    assert check(text, graph) is None


OPTIONAL = (TensorDescription("w", FP32, (4,), optional=True),)


def test_an_optional_input_need_not_be_written() -> None:
    assert check(Y + tensor("input", "4"), (4,), more=OPTIONAL) is None
    written = tensor("input", "4", name="w", more="optional: true")
    assert check(Y + tensor("input", "4") + written, (4,), more=OPTIONAL) is None


def test_an_optional_input_cannot_be_batched_or_ragged() -> None:
    written = tensor("input", "4", name="w", more="optional: true")
    assert check(BATCHED_Y + tensor("input", "4") + written, (-1, 4), more=OPTIONAL) == (
        "unable to load model 'm', optional input 'w' is not supported for models that support "
        "batching"
    )
    ragged = tensor("input", "-1", name="w", more="optional: true allow_ragged_batch: true")
    assert check(Y + tensor("input", "4") + ragged, (4,), more=OPTIONAL) == (
        "unable to load model 'm', configuration expects model provides input with shape [-1] for "
        "ragged input 'w', which is not supported for optional input"
    )


def test_a_sequence_control_must_be_an_input_of_the_graph() -> None:
    control = (
        'sequence_batching { control_input { name: "%s" control { kind: CONTROL_SEQUENCE_START '
        "int32_false_true: [ 0, 1 ] } } }"
    )
    start = (TensorDescription("START", FP32, (1,)),)
    text = Y + tensor("input", "4")
    assert check(text + control % "START", (4,), more=start) is None
    assert check(text + control % "BEGIN", (4,), more=start) == (
        "configuration specified sequence control 'BEGIN', but model does not provide that input"
    )


def test_a_scattered_output_may_have_another_shape() -> None:
    text = (
        BATCHED_Y.replace("2 ]", "7, 7 ]")
        + tensor("input", "-1", more="allow_ragged_batch: true")
        + 'batch_output { target_name: "y" source_input: "x" }'
    )
    assert check(text, (-1,)) is None
