"""Tensors made up, and converted from JSON values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.tensors.byte_elements import split_bytes
from nereid.core.tensors.datatypes import NAMES, SIZE_BYTES
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.signature import TensorSpec
from nereid_perf.inputs.tensors import TensorMaker, dims_of, raw_of, widened
from tests.support.perf_plans import model, plan

NUMBERS = sorted(SIZE_BYTES)
INTEGERS = [each for each in NUMBERS if "INT" in each]
FLOATS = ["BF16", "FP16", "FP32", "FP64"]


def maker(**more: Any) -> TensorMaker:
    zeros = more.pop("zeros", False)
    seed = more.pop("seed", 0)
    integers = more.pop("random_integers", (0, 127))
    return TensorMaker(plan(seed=seed, random_integers=integers), model(**more), zeros=zeros)


@pytest.mark.parametrize("datatype", sorted(NAMES))
def test_each_datatype_has_as_many_elements_as_its_shape_and_depends_on_the_seed(
    datatype: str,
) -> None:
    spec = TensorSpec("X", datatype, (7, 9))
    one, same, other = (maker(seed=seed).make(spec, (7, 9)) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    size = SIZE_BYTES.get(datatype, 4 + 128)
    assert len(one.raw) == 7 * 9 * size
    zeros = maker(zeros=True).make(spec, (7, 9)).raw
    assert (
        zeros == bytes(63 * size)
        if datatype != "BYTES"
        else set(split_bytes(zeros)) == {b"0" * 128}
    )


@pytest.mark.parametrize("datatype", FLOATS)
def test_random_floats_are_between_0_and_1(datatype: str) -> None:
    raw = maker().make(TensorSpec("X", datatype, (1000,)), (1000,)).raw
    values = widened(np.frombuffer(raw, NUMPY_TYPE[datatype]), datatype).astype(np.float64)
    assert 0 <= values.min() < 0.1
    assert 0.9 < values.max() <= 1


@pytest.mark.parametrize("datatype", INTEGERS)
def test_random_integers_are_within_bounds_and_the_datatype(datatype: str) -> None:
    raw = maker(random_integers=(-3, 1 << 62)).make(TensorSpec("X", datatype, ()), (500,)).raw
    values = np.frombuffer(raw, NUMPY_TYPE[datatype])
    assert values.min() >= (0 if datatype.startswith("U") else -3)
    raw = maker(random_integers=(5, 6)).make(TensorSpec("X", datatype, ()), (500,)).raw
    assert {*np.frombuffer(raw, NUMPY_TYPE[datatype]).tolist()} == {5, 6}


def test_random_booleans_are_both() -> None:
    assert {*maker().make(TensorSpec("X", "BOOL", ()), (100,)).raw} == {0, 1}


def test_strings_of_a_length_or_as_given() -> None:
    spec = TensorSpec("X", "BYTES", (3,))
    elements = split_bytes(maker(string_length=5).make(spec, (3,)).raw)
    assert [len(each) for each in elements] == [5, 5, 5]
    assert len({*elements}) == 3
    assert all(each.isalnum() for each in elements)
    assert split_bytes(maker(string_data="é").make(spec, (3,)).raw) == ["é".encode()] * 3
    assert [len(each) for each in split_bytes(maker().make(spec, (2,), 7).raw)] == [7, 7]


def test_tensor_that_no_message_holds() -> None:
    with pytest.raises(InputError, match=r"input 'X' of shape \[3000000000\] takes 12000000000"):
        maker().make(TensorSpec("X", "FP32", (-1,)), (3_000_000_000,))


def test_shapes_by_metadata_and_flag() -> None:
    spec = TensorSpec("X", "FP32", (3, -1, -1))
    assert dims_of(spec, (3, 2, 5), "m") == (3, 2, 5)
    assert dims_of(TensorSpec("X", "FP32", (3,)), None, "m") == (3,)
    with pytest.raises(InputError, match=r"input 'X' of model 'm' .*\[3,-1,-1\].*--shape X:3,1,1"):
        dims_of(spec, None, "m")
    with pytest.raises(InputError, match=r"--shape X:4,2,5 does not fit model 'm'.*\[3,-1,-1\]"):
        dims_of(spec, (4, 2, 5), "m")


@given(st.data(), st.sampled_from(INTEGERS))
def test_integers_of_json_keep_their_values(data: st.DataObject, datatype: str) -> None:
    bounds = np.iinfo(NUMPY_TYPE[datatype])
    numbers = st.integers(int(bounds.min), int(bounds.max))
    values = data.draw(st.lists(st.lists(numbers) | numbers))
    flat = [x for each in values for x in (each if isinstance(each, list) else [each])]
    raw, count = raw_of(values, datatype)
    assert np.frombuffer(raw, NUMPY_TYPE[datatype]).tolist() == flat
    assert count == len(flat)


@given(st.lists(st.floats(width=32, allow_nan=False)), st.sampled_from(["FP32", "FP64"]))
def test_floats_of_json_keep_their_values(values: list[float], datatype: str) -> None:
    assert np.frombuffer(raw_of(values, datatype)[0], NUMPY_TYPE[datatype]).tolist() == values


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_strings_of_json_keep_their_values(values: list[str]) -> None:
    assert [each.decode() for each in split_bytes(raw_of(values, "BYTES")[0])] == values


def test_bf16_is_rounded_to_the_nearest() -> None:
    # 1 + 2^-8 lies between two values: to the even one. 1 + 3 * 2^-8 as well.
    raw, _ = raw_of([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-12, -2.5, float("inf")], "BF16")
    assert np.frombuffer(raw, "<u2").tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xC020, 0x7F80]
    (nan,) = np.frombuffer(raw_of([float("nan")], "BF16")[0], "<u2").tolist()
    assert nan & 0x7F80 == 0x7F80
    assert nan & 0x7F


@pytest.mark.parametrize(
    ("values", "datatype", "text"),
    [
        ([1, 2.5], "INT32", r"element 1: expected a whole number, found 2\.5"),
        ([True], "INT32", "element 0: expected a whole number, found true"),
        ([0, 256], "UINT8", "element 1: 256 is no UINT8, which has 0 to 255"),
        ([-1], "UINT64", "element 0: -1 is no UINT64"),
        (["a"], "FP32", "element 0: expected a number, found the string 'a'"),
        ([None], "FP32", "element 0: expected a number, found null"),
        ([1, 1e39], "FP32", r"element 1: 1e\+39 is too large for FP32"),
        ([70000], "FP16", "element 0: 70000 is too large for FP16"),
        ([10**400], "FP64", "a number is too large for FP64"),
        ([2], "BOOL", "element 0: expected true or false, found 2"),
        ([{}], "BOOL", "element 0: expected true or false, found an object"),
        ([1], "BYTES", "element 0: expected a string, found 1"),
        (["\ud800"], "BYTES", "half of a surrogate pair"),
    ],
)
def test_values_that_do_not_fit(values: list[Any], datatype: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        raw_of(values, datatype)


def test_arrays_nested_too_deep() -> None:
    values: list[Any] = [1]
    for _ in range(100):
        values = [values]
    with pytest.raises(ValueError, match="nested at most 64 deep"):
        raw_of(values, "INT8")
    assert raw_of([[[True]], [[0]]], "BOOL") == (b"\x01\x00", 2)
