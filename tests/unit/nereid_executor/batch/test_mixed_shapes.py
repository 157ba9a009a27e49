"""Batches of requests with different shapes, on models that show what they got."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.backends import EMPTY_DESCRIPTION
from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.core.tensors.classification import Classification
from nereid.core.tensors.tensors import Array
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.arrays import gather_members
from nereid_executor.batch.batch_reader import request_of
from nereid_executor.batch.mixed_shapes import MixedShapes
from nereid_executor.batch.request_plan import Planner
from nereid_executor.batch.runner import Runner
from tests.support.executor.instances import adapter_of, instance, responses
from tests.support.models.onnx_models import head, member, response_of

RAGGED = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
input { name: "w" data_type: TYPE_FP32 dims: [ 2 ] }
batch_input {
  kind: BATCH_ELEMENT_COUNT target_name: "counts" source_input: "x" data_type: TYPE_INT32
}
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "sum" data_type: TYPE_FP32 dims: [ 1 ] }
batch_output { target_name: "y" source_input: "x" }
"""
PADDED = """
max_batch_size: 16
input { name: "x" data_type: TYPE_INT32 dims: [ -1, 2 ] }
input { name: "w" data_type: TYPE_UINT8 dims: [ -1 ] optional: true }
output { name: "y" data_type: TYPE_INT32 dims: [ 2, -1 ] }
output { name: "z" data_type: TYPE_INT32 dims: [ 1 ] }
parameters { key: "padding" value { string_value: "x[0]=-7 w[0] -> y[1]: 2 4" } }
"""


class Seen:
    """A model that is a function, and remembers what it was given."""

    description = EMPTY_DESCRIPTION

    def __init__(self, function: Callable[[dict[str, Array]], dict[str, Array]]) -> None:
        self.function = function
        self.inputs: list[dict[str, Array]] = []

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        self.inputs.append(inputs)
        produced = self.function(inputs)
        return [produced[name] for name in outputs]

    def close(self) -> None:
        """Do nothing."""


def runner(text: str, model: Seen) -> Runner:
    return Runner(instance(text), model)


def negate(inputs: dict[str, Array]) -> dict[str, Array]:
    ends = np.cumsum(inputs["counts"])
    parts = np.split(inputs["x"], ends[:-1])
    # One row of the sum for each of the batch.
    sums = inputs["w"].sum(axis=1, keepdims=True) + sum(part.sum() for part in parts)
    return {"y": -inputs["x"], "sum": sums.astype(np.float32)}


def ragged(x: Array, w: Array, outputs: tuple[str, ...] = ()) -> pb.BatchMember:
    inputs = ("x", "FP32", list(x.shape)), ("w", "FP32", list(w.shape))
    return member(head(*inputs, outputs=outputs), x.tobytes(), w.tobytes())


def floats(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1


def decoded(response: pb.InferResponse) -> dict[str, Array]:
    types = {"FP32": np.float32, "INT32": np.int32}
    return {
        name: np.frombuffer(raw, types[datatype]).reshape(shape)
        for name, datatype, shape, raw in response_of(response)
    }


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 5)), min_size=1, max_size=4))
def test_a_ragged_batch_is_one_row_and_is_scattered(shapes: list[tuple[int, int]]) -> None:
    model = Seen(negate)
    xs = [floats(*shape) for shape in shapes]
    ws = [floats(rows, 2) for rows, _ in shapes]
    found = responses(runner(RAGGED, model), *map(ragged, xs, ws))
    (inputs,) = model.inputs
    assert inputs["x"].tolist() == np.concatenate([x.ravel() for x in xs]).tolist()
    assert inputs["w"].tolist() == np.concatenate(ws).tolist()
    assert inputs["counts"].tolist() == [x.size for x in xs]
    total = sum(x.sum() for x in xs)
    for x, w, response in zip(xs, ws, found, strict=True):
        outputs = decoded(response)
        np.testing.assert_array_equal(outputs["y"], -x)
        np.testing.assert_array_equal(outputs["sum"], w.sum(axis=1, keepdims=True) + total)


def test_members_with_defects_and_with_some_outputs() -> None:
    model = Seen(negate)
    x, w = floats(1, 3), floats(1, 2)
    wrong = member(head(("x", "FP32", [1, 3]), ("w", "FP32", [1, 2])), b"", w.tobytes())
    classes = head(
        ("x", "FP32", [1, 3]), ("w", "FP32", [1, 2]), classes={"y": Classification(1, None)}
    )
    first, second, third = responses(
        runner(RAGGED, model),
        wrong,
        ragged(x, w, ("y",)),
        member(classes, x.tobytes(), w.tobytes()),
    )
    assert first.error.message.startswith("input byte size mismatch for input 'x'")
    assert [*decoded(second)] == ["y"]
    assert response_of(third) == [("y", "BYTES", [1, 1], b"\x0b\0\0\0-1.000000:0")]
    assert model.inputs[0]["counts"].tolist() == [3, 3]
    (alone,) = responses(runner(RAGGED, model), wrong)
    assert alone.HasField("error")


@pytest.mark.parametrize(
    ("y", "sums", "error"),
    [
        (
            floats(4),
            floats(1, 1),
            "'y' of model 'm' has 4 elements, but the shapes of input 'x' make 3",
        ),
        (
            np.zeros(3, np.int8),
            floats(1, 1),
            "'y' of model 'm' has data type 'int8', expected FP32",
        ),
        (floats(3), floats(2, 1), "'sum' of model 'm' has shape [2,1], but the batch has size 1"),
    ],
)
def test_outputs_that_cannot_be_split(y: Array, sums: Array, error: str) -> None:
    model = Seen(lambda _: {"y": y, "sum": sums})
    (response,) = responses(runner(RAGGED, model), ragged(floats(1, 3), floats(1, 2)))
    assert response.error.message == f"output {error}"


def test_outputs_cannot_be_split_by_an_input_that_is_not_there() -> None:
    text = RAGGED.replace("batch_input {", 'batch_input { source_input: "w"').replace(
        ' source_input: "x" data_type: TYPE_INT32', " data_type: TYPE_INT32"
    )
    model = Seen(lambda _: {"y": floats(3), "sum": floats(1, 1)})
    alone = member(head(("w", "FP32", [1, 2])), bytes(8))
    (response,) = responses(runner(text, model), alone)
    assert response.error.message == (
        "an output is split by the shapes of input 'x', which the requests of the batch do not have"
    )


def test_a_model_that_gives_too_few_outputs_fails() -> None:
    class Silent(Seen):
        def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
            return super().execute(inputs, outputs)[:1]

    (response,) = responses(runner(RAGGED, Silent(negate)), ragged(floats(1, 3), floats(1, 2)))
    assert response.error.message == "model 'm' produced 1 outputs, not 2"


def test_dims_of_scattered_outputs_come_from_the_source() -> None:
    text = """
    max_batch_size: 4
    input { name: "x" data_type: TYPE_STRING dims: [ -1, 2 ] allow_ragged_batch: true }
    output { name: "y" data_type: TYPE_INT32 dims: [ -1, 3 ] }
    output { name: "z" data_type: TYPE_INT32 dims: [ 1, 2 ] reshape { shape: [ 2 ] } }
    batch_output { target_name: [ "y", "z" ] source_input: "x" }
    """

    def lengths(inputs: dict[str, Array]) -> dict[str, Array]:
        found = np.array([len(each) for each in inputs["x"]], np.int32)
        return {"y": np.repeat(found[::2], 3).reshape(1, -1), "z": found[:4]}

    model = Seen(lengths)
    texts = b"\1\0\0\0a\2\0\0\0bc"
    found = responses(
        runner(text, model),
        member(head(("x", "BYTES", [1, 1, 2])), texts),
        member(head(("x", "BYTES", [1, 2, 2])), texts + texts),
    )
    assert decoded(found[0])["y"].tolist() == [[[1, 1, 1]]]
    assert decoded(found[1])["y"].tolist() == [[[1, 1, 1], [1, 1, 1]]]
    assert [decoded(one)["z"].tolist() for one in found] == [[[[1, 2]]]] * 2


def test_without_batches_an_input_is_flat_all_the_same() -> None:
    text = RAGGED.replace("max_batch_size: 8", "").replace("dims: [ -1 ]", "dims: [ -1, 3 ]")
    model = Seen(lambda inputs: {"y": -inputs["x"], "sum": floats(1)})
    x = floats(2, 3)
    (response,) = responses(runner(text, model), ragged(x, floats(2)))
    assert model.inputs[0]["x"].shape == (6,)
    assert model.inputs[0]["w"].shape == (2,)
    assert model.inputs[0]["counts"].tolist() == [6]
    np.testing.assert_array_equal(decoded(response)["y"], -x)
    assert decoded(response)["sum"].shape == (1,)


def test_a_rank_that_the_source_does_not_have_is_refused_at_load() -> None:
    text = RAGGED.replace(
        '"y" data_type: TYPE_FP32 dims: [ -1 ]', '"y" data_type: TYPE_FP32 dims: [ 1, -1 ]'
    )
    with pytest.raises(InvalidArgument, match="'y' has a variable dimension that source input 'x'"):
        runner(text, Seen(negate))


def test_states_of_variable_size_are_refused_at_load() -> None:
    state = "input_name: 'a' output_name: 'b' dims: [ -1 ] data_type: TYPE_FP32"
    with pytest.raises(Unimplemented, match="ragged batches of sequences with states of variable"):
        runner(f"{RAGGED} sequence_batching {{ state {{ {state} }} }}", Seen(negate))


# ---- padding


def doubled(inputs: dict[str, Array]) -> dict[str, Array]:
    x = inputs["x"]
    return {"y": x.transpose(0, 2, 1) * 2, "z": x.shape[1] * np.ones((len(x), 1), np.int32)}


def padded(x: Array, w: Array | None = None) -> pb.BatchMember:
    inputs: list[tuple[str, Any]] = [("x", x)] + ([] if w is None else [("w", w)])
    types = {"int32": "INT32", "uint8": "UINT8"}
    described = [(name, types[str(each.dtype)], list(each.shape)) for name, each in inputs]
    return member(head(*described), *(each.tobytes() for _, each in inputs))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(3, 4)), min_size=1, max_size=4))
def test_padded_inputs_share_a_batch_and_outputs_are_cut(shapes: list[tuple[int, int]]) -> None:
    model = Seen(doubled)
    xs = [floats(rows, size, 2).astype(np.int32) for rows, size in shapes]
    found = responses(runner(PADDED, model), *map(padded, xs))
    (inputs,) = model.inputs
    largest = max(size for _, size in shapes)
    assert inputs["x"].shape == (sum(rows for rows, _ in shapes), largest, 2)
    row = 0
    for x, response in zip(xs, found, strict=True):
        rows, size, _ = x.shape
        np.testing.assert_array_equal(inputs["x"][row : row + rows, :size], x)
        assert (inputs["x"][row : row + rows, size:] == -7).all()
        row += rows
        outputs = decoded(response)
        np.testing.assert_array_equal(outputs["y"], x.transpose(0, 2, 1) * 2)
        assert outputs["z"].tolist() == [[largest]] * rows


def test_inputs_of_one_size_are_padded_together() -> None:
    model = Seen(doubled)
    members = [
        padded(np.ones((1, size, 2), np.int32), np.ones((1, size), np.uint8)) for size in (1, 2)
    ]
    response, _ = responses(runner(PADDED, model), *members)
    assert model.inputs[0]["x"].tolist() == [[[1, 1], [-7, -7]], [[1, 1], [1, 1]]]
    assert model.inputs[0]["w"].tolist() == [[1, 0], [1, 1]]
    assert decoded(response)["y"].shape == (1, 2, 1)


@pytest.mark.parametrize(("pads_to_bucket", "size"), [(True, 4), (False, 3)])
def test_a_request_alone_is_padded_where_few_shapes_are_quicker(
    *, pads_to_bucket: bool, size: int
) -> None:
    signature = adapter_of(runner(PADDED, Seen(doubled))).signature
    mixed = MixedShapes(instance(PADDED).config, signature, {}, pads_to_bucket=pads_to_bucket)
    request = request_of(padded(np.ones((1, 3, 2), np.int32)))
    gathered = gather_members(Planner(signature), [request])
    inputs = mixed.stack_inputs(signature, gathered)
    assert inputs["x"].shape == (1, size, 2)
    arrays = [doubled(inputs)[name] for name in gathered.names]
    # Raises if the outputs had to have another size.
    assert len(mixed.split_outputs(signature, gathered, arrays)) == 1


@pytest.mark.parametrize(("pads_to_bucket", "size"), [(True, 4), (False, 3)])
def test_requests_of_different_buckets_may_share_a_batch(
    *, pads_to_bucket: bool, size: int
) -> None:
    signature = adapter_of(runner(PADDED, Seen(doubled))).signature
    mixed = MixedShapes(instance(PADDED).config, signature, {}, pads_to_bucket=pads_to_bucket)
    requests = [request_of(padded(np.ones((1, each, 2), np.int32))) for each in (3, 1)]
    gathered = gather_members(Planner(signature), requests)
    inputs = mixed.stack_inputs(signature, gathered)
    assert inputs["x"].shape == (2, size, 2)
    assert inputs["x"][1, :, 0].tolist() == [1, *[-7] * (size - 1)]
    arrays = [doubled(inputs)[name] for name in gathered.names]
    pieces = mixed.split_outputs(signature, gathered, arrays)
    assert len(pieces) == 2


def test_a_size_beyond_the_last_bucket_is_not_padded() -> None:
    model = Seen(doubled)
    (response,) = responses(runner(PADDED, model), padded(np.ones((1, 9, 2), np.int32)))
    assert model.inputs[0]["x"].shape == (1, 9, 2)
    assert decoded(response)["y"].shape == (1, 2, 9)


def test_an_output_without_the_padded_size_fails() -> None:
    model = Seen(lambda inputs: doubled(inputs) | {"y": np.zeros((1, 2, 3), np.int32)})
    (response,) = responses(runner(PADDED, model), padded(np.ones((1, 1, 2), np.int32)))
    assert response.error.message == (
        "output 'y' of model 'm' has not the size of the padded input 'x' in dimension 1, which is "
        "1"
    )


def test_the_model_may_know_the_sizes_without_padding() -> None:
    sizes = (
        'batch_input { kind: BATCH_ITEM_SHAPE target_name: "sizes" source_input: "x" '
        "data_type: TYPE_INT32 }"
    )
    model = Seen(doubled)
    responses(
        runner(PADDED + sizes, model), *(padded(np.ones((1, n, 2), np.int32)) for n in (3, 4))
    )
    assert model.inputs[0]["sizes"].tolist() == [[3, 2], [4, 2]]
