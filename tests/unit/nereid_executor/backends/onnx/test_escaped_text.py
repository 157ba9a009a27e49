"""Bytes that are no UTF-8 on their way through an ONNX model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid_executor.backends.onnx.escaped_text import escape_strings, unescape_strings

ELEMENTS = [b"", b"a", "é😀".encode(), b"\xff\xfe", b"a\xc3", b"\0\x80\0", bytes(range(256))]
# What stands for bad bytes, as text of a client.
ELEMENTS += ["\U0010fe80\U0010feff".encode(), "\U0010fe80".encode() + b"\xff"]


def there_and_back(elements: list[bytes]) -> list[bytes]:
    array = np.empty((1, len(elements)), np.object_)
    array[0, :] = [each.decode("utf-8", "surrogateescape") for each in elements]
    escaped = escape_strings(array)
    assert escaped.shape == array.shape
    for text in escaped.ravel():
        # What the runtime does with it.
        assert text.encode().decode() == text
    found: list[bytes] = unescape_strings(escaped).ravel().tolist()
    return found


def test_elements_come_back() -> None:
    assert there_and_back(ELEMENTS) == ELEMENTS


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4))
def test_any_elements_come_back(elements: list[bytes]) -> None:
    assert there_and_back(elements) == elements


@given(st.binary(max_size=8), st.binary(max_size=8))
def test_different_elements_remain_different(first: bytes, second: bytes) -> None:
    texts = np.array([each.decode("utf-8", "surrogateescape") for each in (first, second)], object)
    left, right = escape_strings(texts)
    assert (left == right) == (first == second)


@pytest.mark.parametrize("array", [np.zeros((2, 3), np.float32), np.array([True])])
def test_numbers_are_left_alone(array: np.ndarray) -> None:
    assert escape_strings(array) is array
    assert unescape_strings(array) is array
