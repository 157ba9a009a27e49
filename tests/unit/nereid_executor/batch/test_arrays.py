"""Members' payloads joined to a batch's arrays, and its outputs split again."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.backends import EMPTY_DESCRIPTION
from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Internal, NereidError
from nereid.core.tensors import byte_elements, tensors
from nereid.core.tensors.datatypes import CONFIG_NUMBER
from nereid.core.wire.messages import ErrorStatus
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.arrays import (
    GatheredBatch,
    Piece,
    gather_members,
    split_outputs,
    stack_inputs,
)
from nereid_executor.batch.batch_reader import request_of
from nereid_executor.batch.request_plan import Planner, signature_of
from tests.support.models.onnx_models import (
    ADD_SUB,
    config,
    head,
    identity_config,
    member,
    response_of,
)
from tests.support.models.onnx_types import ONNX_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence


def planner(model_config: object, *, text: bool = False) -> Planner:
    return Planner(signature_of(model_config, 1, EMPTY_DESCRIPTION, bytes_as_text=text))  # type: ignore[arg-type]


def gathered_of(plans: Planner, members: Sequence[pb.BatchMember]) -> GatheredBatch:
    return gather_members(plans, [*map(request_of, members)])


def responses(pieces: list[Piece]) -> list[pb.InferResponse]:
    return list(pb.Executed.FromString(b"".join(pieces)).responses)


@st.composite
def compositions(draw: st.DrawFn) -> tuple[str, int, list[tuple[int, bytes]]]:
    """A datatype, a width, and members: each its rows and its raw tensor."""
    datatype = draw(st.sampled_from(sorted(ONNX_TYPE)))
    width = draw(st.integers(0, 3))
    members = []
    for rows in draw(st.lists(st.integers(0, 3), min_size=1, max_size=5)):
        count = rows * width
        if datatype == "BYTES":
            raw = byte_elements.join_bytes(
                draw(st.lists(st.text(max_size=4), min_size=count, max_size=count))
            )
        else:
            size = count * tensors.NUMPY_TYPE[datatype].itemsize
            raw = draw(st.binary(min_size=size, max_size=size))
        members.append((rows, raw))
    return datatype, width, members


@given(compositions(), st.booleans())
def test_stack_then_split_is_identity(
    composition: tuple[str, int, list[tuple[int, bytes]]], text: bool
) -> None:
    datatype, width, members = composition
    plans = planner(identity_config(datatype, "-1"), text=text)
    batch = [member(head(("x", datatype, [rows, width])), raw) for rows, raw in members]
    gathered = gathered_of(plans, batch)
    array = stack_inputs(plans.signature, gathered)["x"]
    assert array.shape == (sum(rows for rows, _ in members), width)
    assert [
        response_of(one) for one in responses(split_outputs(plans.signature, gathered, [array]))
    ] == [[("y", datatype, [rows, width], raw)] for rows, raw in members]


def test_a_single_members_tensor_is_viewed_in_place() -> None:
    plans = planner(identity_config("FP32", "2"))
    array = stack_inputs(
        plans.signature, gathered_of(plans, [member(head(("x", "FP32", [1, 2])), bytes(8))])
    )["x"]
    assert not array.flags.owndata
    assert not array.flags.writeable


def test_several_inputs_and_outputs_keep_their_places() -> None:
    plans = planner(config(ADD_SUB))
    batch = [
        member(head(("b", "INT32", [1, 4]), ("a", "INT32", [1, 4])), bytes([2] * 16), bytes(16)),
        member(head(("b", "INT32", [1, 4]), ("a", "INT32", [1, 4])), bytes([3] * 16), bytes(16)),
    ]
    gathered = gathered_of(plans, batch)
    inputs = stack_inputs(plans.signature, gathered)
    assert inputs["a"].tobytes() == bytes(32)
    assert inputs["b"].tobytes() == bytes([2] * 16 + [3] * 16)
    first, second = responses(split_outputs(plans.signature, gathered, [inputs["a"], inputs["b"]]))
    assert response_of(first) == [
        ("sum", "INT32", [1, 4], bytes(16)),
        ("dif", "INT32", [1, 4], bytes([2] * 16)),
    ]
    assert response_of(second)[1][3] == bytes([3] * 16)


def test_members_that_want_different_outputs_get_their_own() -> None:
    plans = planner(config(ADD_SUB))
    inputs = (("a", "INT32", [1, 4]), ("b", "INT32", [1, 4]))
    heads = [head(*inputs, outputs=("dif",)), head(*inputs, outputs=("sum",)), head(*inputs)]
    gathered = gathered_of(plans, [member(one, bytes(16), bytes(16)) for one in heads])
    assert gathered.names == ["sum", "dif"]
    arrays = [np.full((3, 4), fill, np.int32) for fill in (1, 2)]
    names = [
        [name for name, *_ in response_of(one)]
        for one in responses(split_outputs(plans.signature, gathered, arrays))
    ]
    assert names == [["dif"], ["sum"], ["sum", "dif"]]
    # The same request, when its batch computes just what it wants.
    alone = gathered_of(plans, [member(heads[0], bytes(16), bytes(16))])
    assert alone.names == ["dif"]
    (response,) = responses(split_outputs(plans.signature, alone, [np.full((1, 4), 9, np.int32)]))
    assert response_of(response) == [("dif", "INT32", [1, 4], np.full(4, 9, np.int32).tobytes())]


def test_bad_bytes_are_surrogates_for_models_that_can_have_them() -> None:
    signature = signature_of(
        identity_config("BYTES", "2"), 1, EMPTY_DESCRIPTION, bytes_as_text=True
    )
    elements = [b"\xff", "é".encode()]
    whole = member(head(("x", "BYTES", [1, 2])), byte_elements.join_bytes(elements))
    gathered = gathered_of(Planner(replace(signature, escapes_bytes=True)), [whole])
    assert gathered.tensors == [[["\udcff", "é"]]]


@pytest.mark.parametrize(
    ("bad", "code", "text"),
    [
        (member(head(("x", "BYTES", [1, 2])), b"\1\0"), 3, "incomplete string length indicator"),
        (member(head(("x", "BYTES", [1, 2])), b"\5\0\0\0a"), 3, "incomplete string data"),
        (
            member(head(("x", "BYTES", [1, 2])), byte_elements.join_bytes(["a"])),
            3,
            "expected 2 string elements for inference input 'x' for model 'm', got 1",
        ),
        (
            member(head(("x", "BYTES", [1, 2])), byte_elements.join_bytes([b"\xff", b""])),
            3,
            "UTF-8 text only for inference input 'x' for model 'm'",
        ),
        (member(head(("x", "BYTES", [1, 2]))), 13, "has 1 inputs but 0 payloads"),
        (member(b"\xff", b""), 13, "no ModelInferRequest"),
        (
            pb.BatchMember(
                head=head(("x", "BYTES", [1, 2])),
                payloads=[
                    pb.Payload(shared_memory=pb.SharedMemory(segment_name="s", size_bytes=8))
                ],
            ),
            12,
            "shared memory",
        ),
        (
            member(head(("x", "BYTES", [1, 3])), byte_elements.join_bytes("abc")),
            13,
            "cannot share one",
        ),
    ],
)
def test_a_bad_member_gets_its_own_error_and_the_others_run(
    bad: pb.BatchMember, code: int, text: str
) -> None:
    plans = planner(identity_config("BYTES", "-1"), text=True)
    raw = byte_elements.join_bytes(["a", "b"])
    good = member(head(("x", "BYTES", [1, 2])), raw)
    gathered = gathered_of(plans, [good, bad, good])
    array = stack_inputs(plans.signature, gathered)["x"]
    assert array.tolist() == [["a", "b"], ["a", "b"]]
    first, second, third = responses(split_outputs(plans.signature, gathered, [array]))
    assert response_of(first) == response_of(third) == [("y", "BYTES", [1, 2], raw)]
    assert second.error.code == code
    assert text in second.error.message
    assert not second.error.accepted


def test_a_wrong_size_is_an_error_with_the_right_one() -> None:
    plans = planner(config(ADD_SUB))
    inputs = (("a", "INT32", [1, 4]), ("b", "INT32", [1, 4]))
    gathered = gathered_of(plans, [member(head(*inputs), bytes(16), bytes(15))])
    assert gathered.outcomes == [
        ErrorStatus(3, "input byte size mismatch for input 'b' for model 'm'. Expected 16, got 15")
    ]
    assert gathered.first is None
    (response,) = responses(split_outputs(plans.signature, gathered, []))
    assert response.error.code == 3


def test_a_model_without_batching_takes_one_request_at_a_time() -> None:
    plans = planner(identity_config("UINT8", "[2, -1]", 0))
    one = member(head(("x", "UINT8", [2, 3])), b"abcdef")
    gathered = gathered_of(plans, [one])
    array = stack_inputs(plans.signature, gathered)["x"]
    assert array.shape == (2, 3)
    (response,) = responses(split_outputs(plans.signature, gathered, [array.T.copy().T]))
    assert response_of(response) == [("y", "UINT8", [2, 3], b"abcdef")]
    with pytest.raises(Internal, match="cannot share one"):
        gathered_of(plans, [one, one])


def test_bytes_without_batching() -> None:
    plans = planner(identity_config("BYTES", "1", 0))
    raw = byte_elements.join_bytes([b"\xff"])
    gathered = gathered_of(plans, [member(head(("x", "BYTES", [1])), raw)])
    array = stack_inputs(plans.signature, gathered)["x"]
    (response,) = responses(split_outputs(plans.signature, gathered, [array]))
    assert response_of(response) == [("y", "BYTES", [1], raw)]


def test_reshapes_are_undone_in_the_response() -> None:
    plans = planner(
        config(
            "max_batch_size: 4 input { name: 'x' data_type: TYPE_UINT8 dims: [-1, 4]"
            " reshape { shape: [-1, 2, 2] } }"
            " output { name: 'y' data_type: TYPE_UINT8 dims: 1 reshape { } }"
        )
    )
    gathered = gathered_of(plans, [member(head(("x", "UINT8", [2, 1, 4])), b"abcdefgh")])
    assert stack_inputs(plans.signature, gathered)["x"].shape == (2, 1, 2, 2)
    (response,) = responses(split_outputs(plans.signature, gathered, [np.array([7, 8], np.uint8)]))
    assert response_of(response) == [("y", "UINT8", [2, 1], b"\7\10")]


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ([], "produced 0 outputs, not 1"),
        ([np.zeros((2, 2), np.float64)], "data type 'float64', expected FP32"),
        ([np.zeros((2, 2), np.object_)], "data type 'object', expected FP32"),
        ([np.zeros((3, 2), np.float32)], "has shape [3,2], but the batch has size 2"),
        ([np.zeros((), np.float32)], "has shape [], but the batch has size 2"),
        (
            [np.zeros((1, 2), np.float32)],
            "in responses: expected batch size of atleast 2 in model output, got 1",
        ),
    ],
)
def test_what_the_model_should_not_produce_is_never_an_response(
    arrays: list[tensors.Array], text: str
) -> None:
    plans = planner(identity_config("FP32", "2"))
    gathered = gathered_of(plans, [member(head(("x", "FP32", [1, 2])), bytes(8))] * 2)
    with pytest.raises(NereidError) as caught:
        split_outputs(plans.signature, gathered, arrays)
    assert text in caught.value.message


@pytest.mark.parametrize("shape", [(2, 3), (2, 2, 1), (2,), (2, 0)])
def test_rows_have_the_shape_that_the_model_made(shape: tuple[int, ...]) -> None:
    plans = planner(identity_config("UINT8", "2"))
    gathered = gathered_of(plans, [member(head(("x", "UINT8", [1, 2])), bytes(2))] * 2)
    array = np.arange(prod(shape), dtype=np.uint8).reshape(shape)
    one, other = responses(split_outputs(plans.signature, gathered, [array]))
    row = [1, *shape[1:]]
    assert response_of(one) == [("y", "UINT8", row, array[:1].tobytes())]
    assert response_of(other) == [("y", "UINT8", row, array[1:].tobytes())]


@pytest.mark.parametrize("shape", [(), (1,), (8, 4), (0, 2)])
def test_outputs_have_the_shape_that_the_model_made(shape: tuple[int, ...]) -> None:
    plans = planner(identity_config("UINT8", "2", max_batch_size=0))
    gathered = gathered_of(plans, [member(head(("x", "UINT8", [2])), bytes(2))])
    array = np.arange(prod(shape), dtype=np.uint8).reshape(shape)
    (response,) = responses(split_outputs(plans.signature, gathered, [array]))
    assert response_of(response) == [("y", "UINT8", [*shape], array.tobytes())]


@pytest.mark.parametrize("datatype", ["UINT8", "BYTES"])
def test_a_scalar_is_the_output_of_a_batch_of_one(datatype: str) -> None:
    written = identity_config("UINT8", "1")
    written.output[0].data_type = CONFIG_NUMBER[datatype]
    plans = planner(written)
    gathered = gathered_of(plans, [member(head(("x", "UINT8", [1, 1])), b"a")])
    array = np.array("a", np.object_) if datatype == "BYTES" else np.array(97, np.uint8)
    raw = byte_elements.join_bytes(["a"]) if datatype == "BYTES" else b"a"
    (response,) = responses(split_outputs(plans.signature, gathered, [array]))
    assert response_of(response) == [("y", datatype, [1], raw)]


def test_an_output_without_the_shape_that_is_reshaped_keeps_its_own() -> None:
    written = identity_config("UINT8", "[2]")
    written.output[0].reshape.shape.extend([1, 2])
    plans = planner(written)
    gathered = gathered_of(plans, [member(head(("x", "UINT8", [1, 2])), b"ab")])
    for made, shown in {(1, 1, 2): [1, 2], (1, 3): [1, 3]}.items():
        array = np.zeros(made, np.uint8)
        (response,) = responses(split_outputs(plans.signature, gathered, [array]))
        assert response_of(response) == [("y", "UINT8", shown, array.tobytes())]


def test_texts_of_any_kind_are_bytes() -> None:
    plans = planner(identity_config("BYTES", "1"))
    gathered = gathered_of(
        plans, [member(head(("x", "BYTES", [1, 1])), byte_elements.join_bytes(["a"]))]
    )
    for array in (np.array([["é"]]), np.array([[b"\xc3\xa9"]]), np.array([["é"]], np.object_)):
        (response,) = responses(split_outputs(plans.signature, gathered, [array]))
        assert response_of(response) == [("y", "BYTES", [1, 1], byte_elements.join_bytes(["é"]))]


def test_response_layouts_are_cached_and_bounded() -> None:
    plans = planner(identity_config("UINT8", "-1"))
    gathered = gathered_of(plans, [member(head(("x", "UINT8", [1, 1])), b"a")])
    assert gathered.first is not None
    gathered.first.layouts = BoundedCache(2)
    for width in (1, 2, 1, 2, 3):
        split_outputs(plans.signature, gathered, [np.zeros((1, width), np.uint8)])
    assert [shapes for _, shapes in gathered.first.layouts] == [((3,),)]


def test_a_model_without_outputs_responds_with_a_head() -> None:
    plans = planner(config("max_batch_size: 2 input { name: 'x' data_type: TYPE_UINT8 dims: 1 }"))
    gathered = gathered_of(plans, [member(head(("x", "UINT8", [1, 1])), b"a")])
    (response,) = responses(split_outputs(plans.signature, gathered, []))
    assert response_of(response) == []
