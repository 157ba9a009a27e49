"""Counting BYTES elements, with the texts of a real server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.byte_elements import join_bytes, split_bytes
from nereid_gateway.core.tensors.string_elements import StringInput, check

A = b"\1\0\0\0a"


def about(count: int) -> StringInput:
    return StringInput(0, "INPUT0", "m", count)


# The texts are recorded, in tests/conformance/expected.
@pytest.mark.parametrize(
    ("raw", "count", "words", "accepted"),
    [
        (A + A, 1, "unexpected number of string elements 2", False),
        (A + A, 3, "expected 3 string elements", False),
        (A + b"\1\0\0\0", 2, "expecting string of length 1 but only 0 bytes", True),
        (A + b"\1\0", 2, "expecting 4 bytes but only 2 bytes available", False),
        (A + b"\1\0\0\0", 1, "unexpected number of string elements 2", False),
        (b"", 1, "expected 1 string elements", False),
    ],
)
def test_what_is_refused(raw: bytes, count: int, words: str, accepted: bool) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        check(raw, about(count), "q")
    assert caught.value.accepted is accepted
    # A cut string is the model's input's, not the request's.
    assert caught.value.message.startswith("[request id: q] ") is not accepted


def test_a_request_without_id_is_named_so() -> None:
    with pytest.raises(InvalidArgument, match=r"^\[request id: <id_unknown>\] expected 1 string"):
        check(b"", about(1), "")


@given(st.lists(st.binary(max_size=8), max_size=5))
def test_the_right_count_passes(elements: list[bytes]) -> None:
    check(join_bytes(elements), about(len(elements)), "")


@given(st.binary(max_size=40), st.integers(0, 4))
def test_what_passes_can_be_split(raw: bytes, count: int) -> None:
    try:
        check(raw, about(count), "")
    except InvalidArgument:
        return
    assert len(split_bytes(raw)) == count
