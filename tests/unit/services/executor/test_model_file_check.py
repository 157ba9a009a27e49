"""A configuration compared with what its model file says."""

from __future__ import annotations

import pytest

from nereid.backends import ModelDescription, TensorDescription
from nereid.core.errors import InvalidArgument, NereidError, Unimplemented
from nereid.services.executor.model_file_check import check
from tests.support.models.onnx_models import config

X = TensorDescription("x", "FP32", (-1, 4))
Y = TensorDescription("y", "FP32", (-1, -1))
BATCHING = "max_batch_size: 4 "
GOOD_X = "input { name: 'x' data_type: TYPE_FP32 dims: 4 } "
GOOD_Y = "output { name: 'y' data_type: TYPE_FP32 dims: 2 } "


@pytest.mark.parametrize(
    ("text", "inputs", "outputs"),
    [
        (BATCHING + GOOD_X + GOOD_Y, (X,), (Y,)),
        (BATCHING + GOOD_X + GOOD_Y, (X._replace(dims=None),), (Y._replace(dims=None),)),
        (BATCHING + GOOD_X + GOOD_Y, (X._replace(dims=(-1, -1)),), (Y,)),
        # The configuration leaves open what the graph fixes: each execution checks outputs.
        (
            BATCHING + GOOD_X + "output { name: 'y' data_type: TYPE_FP32 dims: -1 }",
            (X,),
            (Y._replace(dims=(-1, 7)),),
        ),
        ("input { name: 'x' data_type: TYPE_FP32 dims: [-1, 4] }", (X,), ()),
        ("input { name: 'x' data_type: TYPE_FP32 dims: 1 }", (X._replace(dims=()),), ()),
        (
            BATCHING + "input { name: 'x' data_type: TYPE_FP32 dims: 1 reshape { } }",
            (X._replace(dims=(-1,)),),
            (),
        ),
        (BATCHING + GOOD_X, (X, TensorDescription("w", "FP32", (1,), optional=True)), ()),
        (
            BATCHING + GOOD_X + "sequence_batching { control_input { name: 'START' } "
            "state { input_name: 'state' } }",
            (X, X._replace(name="START"), X._replace(name="state")),
            (),
        ),
    ],
)
def test_what_fits_is_accepted(
    text: str, inputs: tuple[TensorDescription, ...], outputs: tuple[TensorDescription, ...]
) -> None:
    check(config(text), ModelDescription(inputs, outputs))


@pytest.mark.parametrize(
    ("text", "found", "error", "reason"),
    [
        (
            BATCHING + GOOD_X,
            (X, X._replace(name="z")),
            InvalidArgument,
            "unable to load model 'm', configuration expects 1 inputs, model provides 2",
        ),
        (
            BATCHING + GOOD_X.replace("'x'", "'q'"),
            (X,),
            InvalidArgument,
            "unexpected inference input 'q' for model 'm', allowed inputs are: x",
        ),
        (
            BATCHING + GOOD_X.replace("FP32", "STRING"),
            (X,),
            InvalidArgument,
            (
                "unable to load model 'm', configuration expects datatype TYPE_STRING "
                "for input 'x', model provides TYPE_FP32"
            ),
        ),
        (
            BATCHING + GOOD_X,
            (X._replace(dims=(-1, 5)),),
            InvalidArgument,
            (
                "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,5]) but the "
                "model configuration specifies 2 dimensions (an initial batch dimension because "
                "max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
                "[-1,4])"
            ),
        ),
        (BATCHING + GOOD_X, (X._replace(dims=(1, 4)),), InvalidArgument, "complete shape [-1,4]"),
        (BATCHING + GOOD_X, (X._replace(dims=()),), InvalidArgument, "0 dimensions (shape [])"),
        (GOOD_X, (X,), InvalidArgument, "specifies 1 dimensions (shape [4])"),
        (
            GOOD_X,
            (X._replace(dims=()),),
            InvalidArgument,
            (
                "scalar tensor 'x', should only provide 1 in the model configuration when the "
                "model doesn't support batching. Model configuration provided: [4]."
            ),
        ),
        (
            BATCHING + GOOD_X.replace("dims: 4", "dims: -1"),
            (X,),
            InvalidArgument,
            "making complete shape [-1,-1]",
        ),
        (
            BATCHING + GOOD_X.replace("dims", "allow_ragged_batch: true dims"),
            (X,),
            Unimplemented,
            "ragged batches",
        ),
        (BATCHING + GOOD_X + "batch_input { }", (X,), Unimplemented, "ragged batches"),
        (BATCHING + GOOD_X + "batch_output { }", (X,), Unimplemented, "ragged batches"),
    ],
)
def test_what_does_not_fit_is_told(
    text: str, found: tuple[TensorDescription, ...], error: type[NereidError], reason: str
) -> None:
    with pytest.raises(error) as caught:
        check(config(text), ModelDescription(found, ()))
    assert reason in caught.value.message


def test_an_output_that_the_graph_fixes_otherwise_is_told() -> None:
    with pytest.raises(InvalidArgument, match="tensor 'y'"):
        check(
            config(BATCHING + GOOD_X + GOOD_Y), ModelDescription((X,), (Y._replace(dims=(-1, 7)),))
        )
