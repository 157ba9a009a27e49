from typing import Any

import numpy as np
import pytest

from nereid.comparison.differences import Kind, compare_responses, compare_streams
from nereid.comparison.responses import Failure, Response, Tensor
from nereid.comparison.rules import TensorRules, parse_tensor_rules
from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.tensors.tensors import datatype_of, to_raw

DEFAULT = TensorRules()


def tensor(values: Any, dtype: Any = np.float32) -> Tensor:
    array = np.array(values, dtype)
    return Tensor(datatype_of(array.dtype), array.shape, to_raw(array))


def response(values: Any, dtype: Any = np.float32) -> Response:
    return Response({"y": tensor(values, dtype)})


def failed(status: str, message: str = "") -> Response:
    return Response(failure=Failure(status, message))


def difference(rules: str, old: Response, new: Response) -> Any:
    found = compare_responses(parse_tensor_rules(rules), old, new)
    assert len(found) <= 1
    return found[0] if found else None


def test_equal_responses_have_no_difference() -> None:
    assert compare_responses(DEFAULT, response([1, 2]), response([1, 2])) == []
    assert compare_responses(DEFAULT, failed("404", "x"), failed("404", "x")) == []


@pytest.mark.parametrize(
    ("old", "new", "kind", "text"),
    [
        (response([1]), failed("500", "broken"), Kind.STATUS, "success -> 500: broken"),
        (failed("400", "a"), response([1]), Kind.STATUS, "400 -> success: a"),
        (failed("400", "a"), failed("400", "b"), Kind.ERROR_TEXT, "a -> b"),
        (response([1]), Response(), Kind.MISSING, "only the old response has it"),
        (Response(), response([1]), Kind.EXTRA, "only the new response has it"),
        (response([1]), response([1], np.float64), Kind.DATATYPE, "FP32 -> FP64"),
        (response([1, 2]), response([[1, 2]]), Kind.SHAPE, "[2] -> [1, 2]"),
        (Response(fields={"id": "1"}), Response(), Kind.FIELD, "1 -> "),
    ],
)
def test_each_kind_is_found(old: Response, new: Response, kind: Kind, text: str) -> None:
    found = difference("", old, new)
    assert (found.kind, found.text) == (kind, text)


def test_tolerances_are_of_the_old_value() -> None:
    rules = "y: absolute=0.5 relative=0.1"
    assert difference(rules, response([10, 0]), response([11.5, 0.5])) is None
    found = difference(rules, response([10, 0]), response([11.5, 0.75]))
    assert found.measure == 0.75
    assert found.text.startswith("element 1: 0.0 -> 0.75, 1 of 2 elements beyond absolute=0.5")


def test_infinities_and_nans_equal_themselves_alone() -> None:
    inf, nan = float("inf"), float("nan")
    rules = "y: absolute=1e30 relative=1e30"
    assert difference(rules, response([inf, nan]), response([inf, -nan])) is None
    for new in ([-inf], [nan], [1.0]):
        assert difference(rules, response([inf]), response(new)).measure == inf


def test_exact_values_are_compared_by_bytes() -> None:
    assert difference("y: exact", response([1, 2]), response([1, 2.5])).measure == 0.5
    found = difference("y: exact", response([0.0]), response([-0.0]))
    assert found.text == "bytes of FP32 elements differ"
    found = difference("", response([2**53], np.int64), response([2**53 + 1], np.int64))
    assert found.kind is Kind.VALUE


def test_bf16_is_read_as_numbers() -> None:
    old, new = (
        Response({"y": Tensor("BF16", (1,), np.array([raw], "<u2").tobytes())})
        for raw in (0x3F80, 0x3F81)
    )
    assert difference("", old, new) is None
    assert difference("y: exact", old, new).text.startswith("element 0: 1.0 -> 1.0078125")


def test_cosine_is_of_each_row() -> None:
    old, new = response([[1, 0], [1, 1]]), response([[1, 0], [1, 0]])
    assert difference("y: cosine=0.7", old, new) is None
    assert difference("y: cosine=0.8", old, new).text == "row 1: cosine 0.707107"
    assert difference("y: cosine=0.8", response([[0, 0]]), response([[0, 1]])).measure == 2.0
    assert difference("y: cosine=0.8", response(1.0), response(2.0)) is None


def test_top_k_lets_equal_elements_swap() -> None:
    old = response([[3, 2, 2, 0]])
    assert difference("y: top-k=2", old, response([[3, 1, 2, 0]])) is None
    found = difference("y: top-k=2", old, response([[3, 1, 2, 9]]))
    assert (found.text, found.measure) == ("row 0: [0, 1] -> [3, 0]", 0.5)
    assert difference("y: top-k=9", old, response([[0, 0, 0, 9]])) is None


def test_texts_are_normalized_by_their_rule() -> None:
    old, new = (
        Response({"y": Tensor("BYTES", (2,), join_bytes(texts))})
        for texts in (["caf\u00e9 au  lait", "x"], ["cafe\u0301 au lait\n", "x"])
    )
    assert difference("y: text", old, new) is None
    assert difference("", old, new).measure == 0.5


def test_ignored_outputs_are_not_compared() -> None:
    assert difference("y: ignore", response([1]), response([2])) is None


@pytest.mark.parametrize(
    ("datatype", "raw", "text"),
    [
        ("FP32", b"abc", "not the bytes of a tensor"),
        ("FP99", b"abcd", "unknown datatype FP99"),
        ("BYTES", b"\x09\0\0\0", "incomplete string data"),
        ("FP32", bytes(8), "number of elements: 1 -> 2"),
    ],
)
def test_damaged_tensors_are_a_difference(datatype: str, raw: bytes, text: str) -> None:
    old = Response({"y": Tensor(datatype, (1,), b"\0\0\0\x01")})
    assert text in difference("", old, Response({"y": Tensor(datatype, (1,), raw)})).text


def test_streams_are_compared_response_by_response() -> None:
    old = [response([1]), response([2])]
    assert compare_streams(DEFAULT, old, list(old)) == []
    found = compare_streams(DEFAULT, old, [response([1]), response([3])])
    assert [(item.kind, item.measure) for item in found] == [(Kind.VALUE, 1.0)]
    found = compare_streams(DEFAULT, old, [response([9]), response([3])])
    assert [(item.kind, item.measure) for item in found] == [(Kind.VALUE, 8.0)]


def test_another_order_is_one_difference() -> None:
    old = [response([value]) for value in range(4)]
    found = compare_streams(DEFAULT, old, [old[1], old[0], old[2], old[3]])
    assert [item.kind for item in found] == [Kind.ORDER]
    many = [response([value]) for value in range(300)]
    assert [item.kind for item in compare_streams(DEFAULT, many, many[::-1])] == [Kind.VALUE]


def test_another_number_of_responses_is_a_difference() -> None:
    found = compare_streams(DEFAULT, [response([1])], [])
    assert found == [(Kind.COUNT, "", "1 of the old server, 0 of the new one", 1.0)]
