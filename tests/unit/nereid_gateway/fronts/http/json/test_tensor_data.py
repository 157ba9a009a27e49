"""Tensor data in JSON: every datatype there and back, and what is refused."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.errors import Internal, InvalidArgument
from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.tensors.datatypes import NAMES
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid_gateway.fronts.http.json import parser, tensor_data

INTEGERS = ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]


@st.composite
def raw_tensors(draw: st.DrawFn) -> tuple[str, int, bytes]:
    datatype = draw(st.sampled_from(sorted(NAMES - {"FP16", "BF16"})))
    count = draw(st.integers(0, 6))
    if datatype == "BYTES":
        elements = draw(st.lists(st.text(), min_size=count, max_size=count))
        return datatype, count, join_bytes(elements)
    if datatype == "BOOL":
        return datatype, count, bytes(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    size = NUMPY_TYPE[datatype].itemsize * count
    return datatype, count, draw(st.binary(min_size=size, max_size=size))


@given(raw_tensors())
def test_out_and_in_again_is_the_same_tensor(tensor: tuple[str, int, bytes]) -> None:
    datatype, count, raw = tensor
    document = parser.parse(orjson.dumps(tensor_data.from_raw(raw, datatype)))
    again = tensor_data.to_raw(document, "X", datatype, [count])
    if datatype.startswith("FP"):
        dtype = NUMPY_TYPE[datatype]
        np.testing.assert_array_equal(np.frombuffer(again, dtype), np.frombuffer(raw, dtype))
    else:
        assert again == raw


@pytest.mark.parametrize(
    "data", [[1, [2, 3], 4], [[1, 2], [3, 4]], [[[1, [2]], 3], 4], [[], 1, 2, 3, 4]]
)
def test_nesting_is_flattened(data: list[Any]) -> None:
    raw = tensor_data.to_raw(data, "X", "INT32", [2, 2])
    assert np.frombuffer(raw, "<i4").tolist() == [1, 2, 3, 4]


def _nested(value: object, lists: int) -> Any:
    for _ in range(lists):
        value = [value]
    return value


def test_nesting_has_a_limit() -> None:
    assert tensor_data.to_raw(_nested(7, 99), "X", "UINT8", [1]) == b"\x07"
    assert tensor_data.to_raw([_nested(7, 98), 8], "X", "UINT8", [2]) == b"\x07\x08"
    assert tensor_data.to_raw([_nested([], 98), 8], "X", "UINT8", [1]) == b"\x08"
    for data in (_nested(7, 100), [_nested(7, 99), 8], [8, _nested([], 100)], _nested(7, 5000)):
        for datatype in ("UINT8", "BYTES"):
            with pytest.raises(InvalidArgument, match=r"depth exceeds maximum allowed limit \(100"):
                tensor_data.to_raw(data, "X", datatype, [1])


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_out_of_range_wrap(datatype: str) -> None:
    value = (1 << 62) + 1
    raw = tensor_data.to_raw([value], "X", datatype, [1])
    size = NUMPY_TYPE[datatype].itemsize
    assert raw == (value % (1 << (8 * size))).to_bytes(size, "little")


@pytest.mark.parametrize(
    ("datatype", "data", "words"),
    [
        ("INT32", [1 << 63], "non-signed-integer as signed-integer"),
        ("INT32", [True], "non-signed-integer as signed-integer"),
        ("UINT8", [-1], "non-unsigned-integer as unsigned-integer"),
        ("FP32", ["a"], "non-number as double"),
        ("FP32", [{}], "non-number as double"),
        ("BOOL", [1], "non-boolean as boolean"),
        ("BYTES", [5], "Unable to parse JSON bytes array: attempt to access JSON non-string"),
        ("BYTES", ["\ud800"], "surrogate pair"),
        ("FP32", 5, "Unable to parse 'data': attempt to access JSON non-array as array"),
        ("FP32", [1, 2], "Shape does not match true shape of 'data' field"),
        ("FP32", ["a", 1], "non-number as double"),
        ("FP32", [1, "a"], "Shape does not match true shape of 'data' field"),
    ],
)
def test_wrong_elements_are_refused(datatype: str, data: Any, words: str) -> None:
    with pytest.raises(Internal, match=words):
        tensor_data.to_raw(data, "X", datatype, [1])


@pytest.mark.parametrize(
    ("datatype", "shape", "words"),
    [
        ("INT8", [2, 1 << 62], r"'X': shape \[2,4611686018427387904\] causes total element count"),
        ("BYTES", [1 << 62, 4], "to exceed maximum size of 9223372036854775807$"),
        (
            "FP32",
            [1 << 61],
            r"^byte size overflow for input 'X': element count \(2305843009213693952\) \* data",
        ),
    ],
)
def test_shapes_that_64_bits_do_not_count_are_refused(
    datatype: str, shape: list[int], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        tensor_data.to_raw([1], "X", datatype, shape)


@pytest.mark.parametrize(
    ("datatype", "data", "shape", "size"),
    [
        ("FP32", [1], [3], 12),
        ("FP32", [1, 2, 3], [3], 12),
        ("FP16", [1], [6], 12),
        ("INT8", ["x"], [12], 12),
        ("BYTES", ["", "abcd"], [1], 12),
        ("BYTES", ["é", ["ab"]], [2], 12),
    ],
)
def test_inputs_beyond_the_limit_are_refused(
    datatype: str, data: Any, shape: list[int], size: int
) -> None:
    with pytest.raises(
        InvalidArgument,
        match=rf"^JSON input 'X' has a byte_size \({size} bytes\) that exceeds the maximum allowed"
        " value of 11 bytes. Use --http-max-input-size to increase the limit.$",
    ):
        tensor_data.to_raw(data, "X", datatype, shape, 11)
    with suppress(Internal, InvalidArgument):
        assert len(tensor_data.to_raw(data, "X", datatype, shape, 12)) == size


@pytest.mark.parametrize("data", [[1], "x", None, [[[]]], [{}]])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_data_of_a_tensor_without_elements_is_ignored(datatype: str, data: Any) -> None:
    assert tensor_data.to_raw(data, "X", datatype, [2, 0]) == b""


def test_several_elements_without_dimensions_are_left_to_the_scheduler() -> None:
    assert tensor_data.to_raw([7], "X", "UINT8", []) == b"\7"
    assert tensor_data.to_raw([7, 8], "X", "UINT8", []) == b""


def test_datatypes_without_a_json_form() -> None:
    with pytest.raises(InvalidArgument, match=r"receiving FP16 data via JSON is not supported.*X"):
        tensor_data.to_raw([1], "X", "FP16", [1])
    assert tensor_data.to_raw([], "X", "BF16", [0]) == b""
    with pytest.raises(InvalidArgument, match="invalid datatype for input X"):
        tensor_data.to_raw([1], "X", "FP8", [1])
    with pytest.raises(
        InvalidArgument, match=r"sending BF16 data via JSON.*for output\Z"
    ) as caught:
        tensor_data.from_raw(b"\0\0", "BF16")
    assert caught.value.accepted


def test_floats_overflow_to_infinity_without_a_warning() -> None:
    raw = tensor_data.to_raw([1e39, -1e300, 1 << 70], "X", "FP32", [3])
    assert np.frombuffer(raw, "<f4")[:2].tolist() == [math.inf, -math.inf]


def test_single_precision_is_written_with_all_its_digits() -> None:
    raw = np.float32(0.1).tobytes()
    assert tensor_data.from_raw(raw, "FP32") == [0.10000000149011612]


def test_invalid_utf8_goes_out_as_it_is() -> None:
    written = tensor_data.from_raw(join_bytes([b"\xff"]), "BYTES")
    assert orjson.dumps(written) == b'["\xff"]'


LARGE: list[tuple[str, bytes]] = [
    ("FP32", np.linspace(-1, 1, 300_000, dtype="<f4").tobytes()),
    ("FP64", np.array([1e300, np.nan, -0.0] * 30_000).tobytes()),
    ("INT8", bytes(range(256)) * 2000),
    ("BOOL", b"\0\1" * 200_000),
    ("BYTES", join_bytes([b"", b'a"\xff', "\u20ac".encode()] * 40_000)),
    ("BYTES", join_bytes([b"a", "\n\u20ac".encode() * 200_000, b"b"])),
    ("BYTES", join_bytes([b"\1" * 300_000])),
    ("INT32", b""),
    ("INT32", b"\1\0\0\0"),
]


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize(("datatype", "raw"), LARGE)
def test_slices_are_the_same_text(datatype: str, raw: bytes, scalar: bool) -> None:
    texts = tensor_data.OutputTexts(1 << 30)
    for _ in range(2):
        in_slices = orjson.dumps(texts.from_raw(raw, datatype, scalar=scalar))
    at_once = orjson.dumps(tensor_data.from_raw(raw, datatype, scalar=scalar))
    if datatype not in ("FP64", "BYTES"):
        assert in_slices == at_once
    else:
        # Text that means the same.
        np.testing.assert_array_equal(parser.parse(in_slices), parser.parse(at_once))


@pytest.mark.parametrize(("datatype", "raw"), LARGE[:7])
def test_texts_have_a_limit_in_all(datatype: str, raw: bytes) -> None:
    size = len(orjson.dumps(tensor_data.from_raw(raw, datatype)))
    texts = tensor_data.OutputTexts(2 * size)
    texts.from_raw(raw, datatype)
    texts.from_raw(raw, datatype)
    with pytest.raises(InvalidArgument, match="use the binary data format") as caught:
        texts.from_raw(raw, datatype)
    assert caught.value.accepted
    with pytest.raises(InvalidArgument):
        tensor_data.OutputTexts(size // 2).from_raw(raw, datatype)


def test_slices_need_a_json_form_as_well() -> None:
    with pytest.raises(InvalidArgument, match="sending FP16 data via JSON is not supported"):
        tensor_data.OutputTexts(1 << 30).from_raw(b"\0\0", "FP16")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)
