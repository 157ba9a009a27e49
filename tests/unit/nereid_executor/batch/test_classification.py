"""Outputs as their largest classes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nereid.backends import ModelDescription, Response
from nereid.core.errors import InvalidArgument
from nereid.core.tensors.byte_elements import join_bytes, split_bytes
from nereid.core.tensors.classification import Classification
from nereid.core.tensors.tensors import to_raw
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.arrays import gather_members, split_outputs
from nereid_executor.batch.batch_reader import request_of
from nereid_executor.batch.classification import Classes, check_classes, classify
from nereid_executor.batch.request_plan import Planner, signature_of
from tests.support.models.onnx_models import config, head, member, response_of

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIG = """
    max_batch_size: 8
    input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] }
    output { name: "y" data_type: TYPE_FP32 dims: [ -1, 2 ] label_filename: "labels.txt" }
"""


@pytest.mark.parametrize(
    ("rows", "most", "labels", "texts"),
    [
        ([[1, 3, 2, 3]], 3, (), [b"3:1", b"3:3", b"2:2"]),
        ([[0.1, -5, 1e10, 7]], 9, (), [b"10000000000.000000:2", b"7.000000:3", b"0.100000:0",
                                       b"-5.000000:1"]),
        ([[1.0, 2.0], [4.0, 3.0]], 1, ("a", ""), [b"2.000000:1", b"4.000000:0:a"]),
        ([[1.0, np.nan, 2.0]], 3, (), [b"2.000000:2", b"1.000000:0", b"nan:1"]),
        (np.array([[-128, 127, 0]], np.int8), 3, (), [b"127:1", b"0:2", b"-128:0"]),
        (np.array([[0, 255]], np.uint8), 2, ("n",), [b"255:1", b"0:0:n"]),
        (np.array([[2**64 - 1, 2**63]], np.uint64), 1, (), [b"%d:0" % (2**64 - 1)]),
        (np.empty((2, 0)), 3, (), []),
    ],
)  # fmt: skip
def test_the_largest_elements_come_in_order(
    rows: Any, most: int, labels: Sequence[str], texts: list[bytes]
) -> None:
    assert split_bytes(classify(np.asarray(rows), most, labels)) == texts


def test_members_of_one_batch_get_classes_or_tensors_as_each_requested() -> None:
    labels = {"y": ("a", "b", "c", "d")}
    signature = signature_of(config(CONFIG), 1, ModelDescription((), ()), bytes_as_text=True,
                             labels=labels)  # fmt: skip
    first = np.array([[[4, 1], [2, 3]]], np.float32)
    second = np.array([[[1, 2], [3, 4]], [[8, 7], [6, 5]]], np.float32)
    batch = [
        member(head(("x", "FP32", [1, 2, 2])), to_raw(first)),
        member(head(("x", "FP32", [2, 2, 2]), classes={"y": Classification(2)}), to_raw(second)),
    ]
    gathered = gather_members(Planner(signature), [*map(request_of, batch)])
    pieces = split_outputs(signature, gathered, [np.concatenate([first, second])])
    plain, classes = pb.Executed.FromString(b"".join(pieces)).responses
    assert response_of(plain) == [("y", "FP32", [1, 2, 2], to_raw(first))]
    texts = [b"4.000000:3:d", b"3.000000:2:c", b"8.000000:0:a", b"7.000000:1:b"]
    assert response_of(classes) == [("y", "BYTES", [2, 2], join_bytes(texts))]


@pytest.mark.parametrize("labels", [None, ("", "e", "f")])
def test_classes_may_come_beside_the_tensor_and_by_other_labels(
    labels: tuple[str, ...] | None,
) -> None:
    signature = signature_of(
        config(CONFIG), 1, ModelDescription((), ()), bytes_as_text=True, labels={"y": ("a", "b")}
    )
    array = np.array([[[4, 7]], [[2, 1]]], np.float32)
    wanted = Classification(1, labels, beside=True)
    batch = [
        member(head(("x", "FP32", [1, 1, 2]), classes={"y": wanted}), to_raw(array[:1])),
        member(head(("x", "FP32", [1, 1, 2])), to_raw(array[1:])),
    ]
    pieces = split_outputs(
        signature, gather_members(Planner(signature), [*map(request_of, batch)]), [array]
    )
    both, plain = pb.Executed.FromString(b"".join(pieces)).responses
    text = join_bytes([b"7.000000:1:e" if labels else b"7.000000:1:b"])
    tensor = ("y", "FP32", [1, 1, 2], to_raw(array[:1]))
    assert response_of(both) == [tensor, ("y", "BYTES", [1, 1], text)]
    assert response_of(plain) == [("y", "FP32", [1, 1, 2], to_raw(array[1:]))]
    response = kserve_pb2.ModelInferResponse(model_name="m")
    response.outputs.add(name="y", datatype="FP32", shape=[1, 1, 2])
    responded = Response(0, False, head=response.SerializeToString(), tensors=[to_raw(array[:1])])
    classes = Classes(config(CONFIG.replace('label_filename: "labels.txt"', "")), Path())
    responded = classes.classify_response(responded, {"y": wanted})
    found = kserve_pb2.ModelInferResponse.FromString(responded.head).outputs
    assert [(each.datatype, [*each.shape]) for each in found] == [
        ("FP32", [1, 1, 2]),
        ("BYTES", [1, 1]),
    ]
    assert responded.tensors[0] == to_raw(array[:1])
    assert responded.tensors[1] == (text if labels else join_bytes([b"7.000000:1"]))


def test_outputs_of_a_model_that_executes_requests_become_classes() -> None:
    described = kserve_pb2.ModelInferResponse(model_name="m")
    described.outputs.add(name="x", datatype="INT32", shape=[1])
    described.outputs.add(name="y", datatype="FP32", shape=[2, 2])
    rows = to_raw(np.array([[1, 2], [4, 3]], np.float32))
    response = Response(0, False, head=described.SerializeToString(), tensors=[b"abcd", rows])
    plain = config(CONFIG.replace('label_filename: "labels.txt"', ""))
    classes = Classes(plain, Path())
    empty = Response(0, False)
    assert classes.classify_response(empty, {"y": Classification(1)}) is empty
    responded = classes.classify_response(response, {"y": Classification(1)})
    head = kserve_pb2.ModelInferResponse.FromString(responded.head)
    assert [(each.datatype, list(each.shape)) for each in head.outputs] == [
        ("INT32", [1]),
        ("BYTES", [2, 1]),
    ]
    assert responded.tensors == [b"abcd", join_bytes([b"2.000000:1", b"4.000000:0"])]


def test_elements_without_an_order_cannot_become_classes() -> None:
    described = kserve_pb2.ModelInferResponse()
    described.outputs.add(name="y", datatype="BYTES", shape=[1])
    response = Response(0, False, head=described.SerializeToString(), tensors=[b"\0\0\0\0"])
    classes = Classes(config("max_batch_size: 0"), Path())
    refused = classes.classify_response(response, {"y": Classification(1)})
    assert refused.error_status is not None
    assert refused.error_status.message.endswith("due to unsupported type 'BYTES'")
    assert not refused.head


@pytest.mark.parametrize(
    ("elements", "most", "refused"),
    [(1 << 18, 2**31 - 1, False), ((1 << 18) + 1, 2**31 - 1, True), ((1 << 18) + 1, 5, False)],
)
def test_a_response_has_so_many_classes(*, elements: int, most: int, refused: bool) -> None:
    described = kserve_pb2.ModelInferResponse()
    described.outputs.add(name="y", datatype="UINT8", shape=[elements])
    response = Response(0, False, head=described.SerializeToString(), tensors=[bytes(elements)])
    classes = Classes(config("max_batch_size: 0"), Path())
    responded = classes.classify_response(response, {"y": Classification(most)})
    assert (responded.error_status is not None) is refused


def test_few_of_many_elements_are_those_that_sorting_all_would_give() -> None:
    random = np.random.default_rng(1)
    rows = random.integers(0, 40, (5, 300)).astype(np.float32)
    rows[1] = np.nan
    rows[2, 3:] = np.nan
    rows[3] = 7
    most = 5
    order = np.argsort(-rows, axis=1, kind="stable")[:, :most]
    texts = [
        b"%f:%d" % (rows[row, index], index) for row in range(len(rows)) for index in order[row]
    ]
    assert split_bytes(classify(rows, most, ())) == texts
    assert split_bytes(classify(rows[:0], most, ())) == []


def test_a_member_that_asks_for_too_many_classes_fails_alone() -> None:
    text = """
        max_batch_size: 8
        input { name: "x" data_type: TYPE_UINT8 dims: [ -1 ] }
        output { name: "y" data_type: TYPE_UINT8 dims: [ -1 ] }
    """
    signature = signature_of(config(text), 1, ModelDescription((), ()), bytes_as_text=True)
    count = (1 << 18) + 1
    array = np.zeros((2, count), np.uint8)
    batch = [
        member(head(("x", "UINT8", [1, count]), classes={"y": Classification(most)}), bytes(count))
        for most in (1 << 31, 2)
    ]
    gathered = gather_members(Planner(signature), [*map(request_of, batch)])
    pieces = split_outputs(signature, gathered, [array])
    refused, served = pb.Executed.FromString(b"".join(pieces)).responses
    assert refused.error.code == 3
    assert refused.error.message == (
        "output 'y' has 262145 classes, a response has at most 262144; ask for fewer by"
        " 'classification'"
    )
    assert response_of(served) == [("y", "BYTES", [1, 2], join_bytes([b"0:0", b"0:1"]))]


def test_a_row_of_more_than_a_million_elements_has_no_classes() -> None:
    check_classes("y", 1_000_000, 1)
    with pytest.raises(InvalidArgument, match=r"^classification output tensor too large$"):
        check_classes("y", 1_000_001, 1)
