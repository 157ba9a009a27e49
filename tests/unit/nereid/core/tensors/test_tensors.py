"""Raw tensors to arrays and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nereid.core.errors import InvalidArgument
from nereid.core.tensors import byte_elements, tensors
from nereid.core.tensors.datatypes import CONFIG_NUMBER, NAMES, SIZE_BYTES, byte_size, element_count


@given(st.sampled_from(sorted(SIZE_BYTES)), hnp.array_shapes(min_dims=0, min_side=0), st.data())
def test_every_fixed_datatype_survives_the_round_trip(
    datatype: str, shape: tuple[int, ...], data: st.DataObject
) -> None:
    array = data.draw(hnp.arrays(tensors.NUMPY_TYPE[datatype], shape))
    raw = tensors.to_raw(array)
    assert len(raw) == byte_size(datatype, shape)
    back = tensors.from_raw(raw, datatype, shape)
    assert back.tobytes() == raw
    assert back.shape == shape


@given(st.lists(st.binary(max_size=50)))
def test_bytes_elements_survive_the_round_trip(elements: list[bytes]) -> None:
    raw = byte_elements.join_bytes(elements)
    assert byte_elements.split_bytes(raw) == elements
    array = tensors.from_raw(raw, "BYTES", [len(elements)])
    assert array.tolist() == elements
    assert tensors.to_raw(array) == raw


@given(st.binary(max_size=64))
def test_arbitrary_bytes_split_or_are_refused(raw: bytes) -> None:
    try:
        elements = byte_elements.split_bytes(raw)
    except InvalidArgument:
        return
    assert byte_elements.join_bytes(elements) == raw


@pytest.mark.parametrize(
    ("raw", "text"),
    [(b"\x01\x00\x00", "length indicator"), (b"\x05\x00\x00\x00abc", "string data")],
)
def test_damaged_framing_names_what_is_cut(raw: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        byte_elements.split_bytes(raw)


def test_text_is_encoded() -> None:
    assert tensors.to_raw(np.array(["é"])) == b"\x02\x00\x00\x00\xc3\xa9"


def test_a_wrong_element_count_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="do not fill"):
        tensors.from_raw(bytes(8), "FP32", [3])
    with pytest.raises(InvalidArgument, match="no whole number"):
        tensors.from_raw(bytes(7), "FP32", [1])


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("float32", "FP32"), (">i8", "INT64"), ("bool", "BOOL"), ("O", "BYTES"), ("U3", "BYTES")],
)
def test_numpy_types_have_their_names(dtype: str, name: str) -> None:
    assert tensors.datatype_of(np.dtype(dtype)) == name


def test_a_foreign_numpy_type_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="complex128"):
        tensors.datatype_of(np.dtype("complex128"))


def test_tables_agree() -> None:
    assert set(tensors.NUMPY_TYPE) == NAMES == set(CONFIG_NUMBER)
    assert all(tensors.NUMPY_TYPE[n].itemsize == size for n, size in SIZE_BYTES.items())
    assert byte_size("BYTES", [2]) is None
    assert element_count([]) == 1
