"""Numbers of raw tensors, without numpy; numpy is the other opinion."""

from typing import Any

import numpy as np
import pytest

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import NAMES
from nereid.core.tensors.scalars import literal_tensor, read_scalars
from nereid.core.tensors.tensors import NUMPY_TYPE, from_raw

NUMBERS = sorted(NAMES - {"BYTES", "BF16", "BOOL"})


@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_are_read_as_numpy_reads_them(datatype: str) -> None:
    array = np.array([0, 1, 100], NUMPY_TYPE[datatype])
    assert read_scalars(array.tobytes(), datatype) == (0, 1, 100)
    assert literal_tensor([0, 1, 100], datatype, [-1]) == ((3,), array.tobytes())


def test_bf16_and_bool_are_read() -> None:
    assert read_scalars(b"\x80\x3f\x00\xc0", "BF16") == (1.0, -2.0)
    assert literal_tensor([1, -2.0, 1.0078125, 0.1], "BF16", [4])[1] == bytes.fromhex(
        "803f 00c0 813f cd3d"
    )
    assert read_scalars(b"\1\0", "BOOL") == (True, False)
    assert literal_tensor(True, "BOOL", [2]) == ((2,), b"\1\1")


def test_a_cut_off_tensor_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="3 bytes are no whole number of FP32 elements"):
        read_scalars(b"\0\0\0", "FP32")


@pytest.mark.parametrize(
    ("value", "datatype", "dims", "expected"),
    [
        (7, "INT32", [2, 2], [[7, 7], [7, 7]]),
        (0.5, "FP16", [], 0.5),
        ("no", "BYTES", [2], [b"no", b"no"]),
        ([[1, 2], [3, 4]], "UINT8", [-1, 2], [[1, 2], [3, 4]]),
        ([], "INT64", [-1], []),
        ([["é"]], "BYTES", [1, 1], [["é".encode()]]),
    ],
)
def test_json_becomes_a_tensor(value: Any, datatype: str, dims: list[int], expected: Any) -> None:
    shape, raw = literal_tensor(value, datatype, dims)
    np.testing.assert_array_equal(from_raw(raw, datatype, shape), np.array(expected))
    assert shape == np.shape(expected)


@pytest.mark.parametrize(
    ("value", "datatype", "dims", "error"),
    [
        (0, "FP32", [-1], r"the shape \[-1\] has a variable dimension, so the value must be a"),
        ([1, 2], "FP32", [3], r"the value does not have the shape \[3\]"),
        ([[1], [2, 3]], "FP32", [2, -1], "do not have the same lengths"),
        ([[1], 2], "FP32", [2, 1], "do not have the same lengths"),
        ([1, [2]], "FP32", [2], r"\[2\] is no FP32 value"),
        (256, "UINT8", [1], "out of range for UINT8"),
        (-1, "UINT64", [1], "out of range for UINT64"),
        (10**400, "FP64", [1], "out of range for FP64"),
        (1e300, "BF16", [1], "out of range for BF16"),
        (70000.0, "FP16", [1], "out of range for FP16"),
        (float("inf"), "FP32", [1], "Infinity is no FP32 value"),
        (1.5, "INT32", [1], "1.5 is no INT32 value"),
        (True, "INT32", [1], "true is no INT32 value"),
        (1, "BOOL", [1], "1 is no BOOL value"),
        ("1", "FP32", [1], '"1" is no FP32 value'),
        (1, "BYTES", [1], "1 is no BYTES value"),
        (None, "BYTES", [1], "null is no BYTES value"),
        ({}, "FP32", [1], "{} is no FP32 value"),
        (0, "FP32", [1 << 40], "too large for a default"),
        ("x" * 1000, "BYTES", [1 << 20], "too large for a default"),
        ("x" * (1 << 24), "BYTES", [1], "too large for a default"),
        (["x" * (1 << 24)], "BYTES", [1], "the value has 16777220 bytes, more than 16777216"),
    ],
)
def test_json_that_is_no_such_tensor_is_refused(
    value: Any, datatype: str, dims: list[int], error: str
) -> None:
    with pytest.raises(InvalidArgument, match=error):
        literal_tensor(value, datatype, dims)


def test_all_rows_together_are_bounded() -> None:
    assert literal_tensor(0, "INT8", [1 << 20], max_rows=16)[0] == (1 << 20,)
    with pytest.raises(InvalidArgument, match="too large for a default"):
        literal_tensor(0, "INT8", [1 << 20], max_rows=17)
