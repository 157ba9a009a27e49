"""A configuration against the model file, when it is completed and when the model is loaded."""

from __future__ import annotations

import pytest

from nereid.backends import ModelDescription, TensorDescription
from nereid.core.errors import InvalidArgument
from nereid.model_config import (
    check_model_file,
    complete_config,
    parse_config,
)
from tests.support.models.onnx_models import config as config_of

Dims = tuple[int, ...] | None


def check(
    text: str, x: Dims, y: Dims = (-1, 2), more: tuple[TensorDescription, ...] = ()
) -> str | None:
    """The error's text, or None."""
    description = ModelDescription(
        (TensorDescription("x", "FP32", x), *more), (TensorDescription("y", "BYTES", y),)
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
def test_what_does_not_agree_is_refused_in_tritons_words(text: str, x: Dims, expected: str) -> None:
    assert check(text, x) == expected


def test_an_unknown_datatype_is_refused() -> None:
    description = ModelDescription(
        (TensorDescription("x", "INVALID", (4,)),), (TensorDescription("y", "BYTES", (-1, 2)),)
    )
    config = parse_config(f'backend: "mine" {Y} {tensor("input", "4")}', model_name="m")
    with pytest.raises(InvalidArgument, match=r"model provides TYPE_INVALID$"):
        complete_config(config, model_name="m", description=description)


@pytest.mark.parametrize("graph", [(-1,), None])
def test_a_ragged_input_is_one_long_row(graph: Dims) -> None:
    text = BATCHED_Y + tensor("input", "-1", more="allow_ragged_batch: true")
    assert check(text, graph) is None


OPTIONAL = (TensorDescription("w", "FP32", (4,), optional=True),)


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
    start = (TensorDescription("START", "FP32", (1,)),)
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


# ---- loaded

FILE_X = TensorDescription("x", "FP32", (-1, 4))
FILE_Y = TensorDescription("y", "FP32", (-1, -1))
COUNTS = TensorDescription("counts", "INT32", (-1,))
BATCH_INPUT = (
    'batch_input { target_name: [ "counts", "more" ] source_input: "x" data_type: TYPE_INT32 }'
)
BATCHING = "max_batch_size: 4 "
GOOD_X = "input { name: 'x' data_type: TYPE_FP32 dims: 4 } "
GOOD_Y = "output { name: 'y' data_type: TYPE_FP32 dims: 2 } "


@pytest.mark.parametrize(
    ("text", "inputs", "outputs"),
    [
        (BATCHING + GOOD_X + GOOD_Y, (FILE_X,), (FILE_Y,)),
        (
            BATCHING + GOOD_X + GOOD_Y,
            (FILE_X._replace(dims=None),),
            (FILE_Y._replace(dims=None),),
        ),
        (BATCHING + GOOD_X + GOOD_Y, (FILE_X._replace(dims=(-1, -1)),), (FILE_Y,)),
        # The configuration leaves open what the graph fixes: each execution checks outputs.
        (
            BATCHING + GOOD_X + "output { name: 'y' data_type: TYPE_FP32 dims: -1 }",
            (FILE_X,),
            (FILE_Y._replace(dims=(-1, 7)),),
        ),
        ("input { name: 'x' data_type: TYPE_FP32 dims: [-1, 4] }", (FILE_X,), ()),
        ("input { name: 'x' data_type: TYPE_FP32 dims: 1 }", (FILE_X._replace(dims=()),), ()),
        (
            BATCHING + "input { name: 'x' data_type: TYPE_FP32 dims: 1 reshape { } }",
            (FILE_X._replace(dims=(-1,)),),
            (),
        ),
        (BATCHING + GOOD_X, (FILE_X, TensorDescription("w", "FP32", (1,), optional=True)), ()),
        (
            BATCHING + GOOD_X + "sequence_batching { control_input { name: 'START' } "
            "state { input_name: 'state' } }",
            (FILE_X, FILE_X._replace(name="START"), FILE_X._replace(name="state")),
            (),
        ),
        (
            BATCHING
            + GOOD_X.replace("dims", "allow_ragged_batch: true dims")
            + GOOD_Y
            + BATCH_INPUT
            + 'batch_output { target_name: "y" source_input: "x" }',
            (FILE_X._replace(dims=(-1,)), COUNTS, COUNTS._replace(name="more", dims=None)),
            (FILE_Y._replace(dims=(-1,)),),
        ),
        (
            BATCHING + GOOD_X + BATCH_INPUT.replace("{", "{ kind: BATCH_ITEM_SHAPE"),
            (
                FILE_X,
                COUNTS._replace(dims=(-1, -1)),
                COUNTS._replace(name="more", dims=(-1, 1)),
            ),
            (),
        ),
    ],
)
def test_a_loaded_model_that_fits_is_accepted(
    text: str, inputs: tuple[TensorDescription, ...], outputs: tuple[TensorDescription, ...]
) -> None:
    check_model_file(config_of(text), ModelDescription(inputs, outputs))


@pytest.mark.parametrize(
    ("text", "found", "reason"),
    [
        (
            BATCHING + GOOD_X,
            (FILE_X, FILE_X._replace(name="z")),
            "unable to load model 'm', configuration expects 1 inputs, model provides 2",
        ),
        (
            BATCHING + GOOD_X.replace("'x'", "'q'"),
            (FILE_X,),
            "unexpected inference input 'q' for model 'm', allowed inputs are: x",
        ),
        (
            BATCHING + GOOD_X.replace("FP32", "STRING"),
            (FILE_X,),
            (
                "unable to load model 'm', configuration expects datatype TYPE_STRING "
                "for input 'x', model provides TYPE_FP32"
            ),
        ),
        (
            BATCHING + GOOD_X,
            (FILE_X._replace(dims=(-1, 5)),),
            (
                "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,5]) but the "
                "model configuration specifies 2 dimensions (an initial batch dimension because "
                "max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
                "[-1,4])"
            ),
        ),
        (
            BATCHING + GOOD_X,
            (FILE_X._replace(dims=(1, 4)),),
            "complete shape [-1,4]",
        ),
        (
            BATCHING + GOOD_X,
            (FILE_X._replace(dims=()),),
            "0 dimensions (shape [])",
        ),
        (GOOD_X, (FILE_X,), "specifies 1 dimensions (shape [4])"),
        (
            GOOD_X,
            (FILE_X._replace(dims=()),),
            (
                "scalar tensor 'x', should only provide 1 in the model configuration when the "
                "model doesn't support batching. Model configuration provided: [4]."
            ),
        ),
        (
            BATCHING + GOOD_X.replace("dims: 4", "dims: -1"),
            (FILE_X,),
            "making complete shape [-1,-1]",
        ),
        (
            BATCHING + GOOD_X.replace("dims", "allow_ragged_batch: true dims"),
            (FILE_X,),
            "shape [-1] for ragged input 'x', model provides [-1,4]",
        ),
        (
            BATCHING + GOOD_X + BATCH_INPUT,
            (FILE_X,),
            "configuration expects 3 inputs, model provides 1",
        ),
        (
            BATCHING + GOOD_X + BATCH_INPUT,
            (FILE_X, COUNTS, COUNTS._replace(name="other")),
            "unexpected inference input 'more' for model 'm', allowed inputs are: counts, other, x",
        ),
        (
            BATCHING + GOOD_X + BATCH_INPUT,
            (FILE_X, COUNTS, COUNTS._replace(name="more", datatype="FP32")),
            "expects datatype TYPE_INT32 for input 'more', model provides TYPE_FP32",
        ),
        (
            BATCHING + GOOD_X + BATCH_INPUT,
            (FILE_X, COUNTS, COUNTS._replace(name="more", dims=(-1, 1))),
            "provides input with shape [-1] for batch input 'more', model provides [-1,1]",
        ),
        (
            BATCHING + GOOD_X + BATCH_INPUT.replace("{", "{ kind: BATCH_ITEM_SHAPE"),
            (FILE_X, COUNTS._replace(dims=None), COUNTS._replace(name="more")),
            "provides input with shape [-1,-1] for batch input 'more', model provides [-1]",
        ),
        (
            BATCHING + GOOD_X + BATCH_INPUT.replace("{", "{ kind: BATCH_ITEM_SHAPE"),
            (FILE_X, COUNTS._replace(dims=(2, 2)), COUNTS._replace(name="more")),
            "provides input with shape [-1,-1] for batch input 'counts', model provides [2,2]",
        ),
    ],
)
def test_a_loaded_model_that_does_not_fit_is_refused(
    text: str, found: tuple[TensorDescription, ...], reason: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_model_file(config_of(text), ModelDescription(found, ()))
    assert reason in caught.value.message


def test_a_loaded_output_that_the_graph_fixes_otherwise_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="tensor 'y'"):
        check_model_file(
            config_of(BATCHING + GOOD_X + GOOD_Y),
            ModelDescription((FILE_X,), (FILE_Y._replace(dims=(-1, 7)),)),
        )
