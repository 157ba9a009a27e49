"""Plans: how a request fills a batch, and what fits none."""

from __future__ import annotations

import pytest

from nereid.backends import EMPTY_DESCRIPTION, ModelDescription, TensorDescription
from nereid.core.errors import Internal
from nereid_executor.batch.request_plan import (
    Planner,
    Signature,
    make_plan,
    signature_of,
)
from tests.support.models.onnx_models import ADD_SUB, Input, config, head


def signature(text: str, description: ModelDescription | None = None) -> Signature:
    return signature_of(config(text), 3, description or EMPTY_DESCRIPTION, bytes_as_text=True)


VARIABLE = signature(
    "max_batch_size: 4 input { name: 'x' data_type: TYPE_FP16 dims: [-1, 2] }"
    " input { name: 's' data_type: TYPE_STRING dims: 3 }"
    " output { name: 'y' data_type: TYPE_FP32 dims: 1 }"
    " output { name: 'z' data_type: TYPE_FP32 dims: 1 }"
)


def test_a_plan_has_the_rows_of_a_request() -> None:
    plan = make_plan(VARIABLE, head(("s", "BYTES", [2, 3]), ("x", "FP16", [2, 5, 2])))
    assert plan.rows == 2
    assert [(column.name, column.shape) for column in plan.columns] == [("s", (3,)), ("x", (5, 2))]
    assert plan.sizes == [None, 40]
    assert plan.counts == [6, 20]
    assert plan.outputs == (0, 1)
    assert plan.output_names == ["y", "z"]


def test_requested_outputs_come_in_the_configurations_order_and_once() -> None:
    given: Input = ("x", "FP16", [1, 1, 2])
    plan = make_plan(VARIABLE, head(given, outputs=("z", "y", "z")))
    assert plan.output_names == ["y", "z"]
    assert make_plan(VARIABLE, head(given, outputs=("z",))).output_names == ["z"]


def test_without_batching_a_request_is_one_row_of_its_whole_shape() -> None:
    plain = signature("input { name: 'x' data_type: TYPE_INT8 dims: [2, -1] }")
    plan = make_plan(plain, head(("x", "INT8", [2, 7])))
    assert (plan.rows, plan.columns[0].shape, plan.sizes) == (1, (2, 7), [14])


def test_a_request_without_inputs_is_one_row() -> None:
    assert make_plan(VARIABLE, head()).rows == 1


def test_reshape_gives_the_model_its_own_shape() -> None:
    reshaped = signature(
        "max_batch_size: 4 input { name: 'x' data_type: TYPE_FP32 dims: [-1, 6, -1]"
        " reshape { shape: [-1, 2, 3, -1] } }"
    )
    plan = make_plan(reshaped, head(("x", "FP32", [2, 4, 6, 5])))
    assert plan.columns[0].shape == (4, 2, 3, 5)


def test_a_scalar_of_the_graph_is_written_as_ones() -> None:
    description = ModelDescription((TensorDescription("x", "FP32", ()),), ())
    scalar = signature("input { name: 'x' data_type: TYPE_FP32 dims: 1 }", description)
    assert make_plan(scalar, head(("x", "FP32", [1]))).columns[0].shape == ()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (head(("q", "FP16", [1, 1, 2])), "unexpected input 'q' of datatype 'FP16'"),
        (head(("x", "FP32", [1, 1, 2])), "unexpected input 'x' of datatype 'FP32'"),
        (head(("x", "FP16", [1, 1, 3])), "unexpected shape [1,1,3] of input 'x'"),
        (head(("x", "FP16", [1, 2])), "unexpected shape [1,2] of input 'x'"),
        (head(("x", "FP16", [1, -5, 2])), "unexpected shape [1,-5,2] of input 'x'"),
        (head(("x", "FP16", [])), "differ in batch size"),
        (head(("x", "FP16", [1, 1, 2]), ("s", "BYTES", [2, 3])), "differ in batch size"),
        (head(("x", "FP16", [1, 1, 2]), outputs=("q",)), "unexpected output 'q'"),
        (b"\xff", "no ModelInferRequest"),
    ],
)
def test_what_the_scheduler_should_have_refused_is_refused(wrong: bytes, text: str) -> None:
    with pytest.raises(Internal) as caught:
        make_plan(VARIABLE, wrong)
    assert text in caught.value.message


def test_plans_are_remembered_by_their_heads_and_bounded() -> None:
    planner = Planner(signature(ADD_SUB), max_plans=2)
    heads = [head(("a", "INT32", [rows, 4])) for rows in (1, 2, 3)]
    first = planner.plan_request(heads[0])
    assert planner.plan_request(heads[0]) is first
    planner.plan_request(heads[1])
    assert planner.plan_request(heads[0]) is first
    planner.plan_request(heads[2])
    assert list(planner.plans) == [heads[2]]
