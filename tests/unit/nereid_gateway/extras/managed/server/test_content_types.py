"""The content type of binary tensors on managed ports."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid_gateway.extras.managed.server.content_types import (
    SAGEMAKER,
    VERTEX_AI,
    header_length_text,
)


@pytest.mark.parametrize("binary_type", [SAGEMAKER, VERTEX_AI], ids=["sagemaker", "vertex-ai"])
def test_the_number_behind_it(binary_type: bytes) -> None:
    assert header_length_text(binary_type + b"123", binary_type) == b"123"
    # std::stoi() reads the number at the beginning.
    assert header_length_text(binary_type + b" 12; x", binary_type) == b" 12; x"


@pytest.mark.parametrize(
    "content_type", [b"", b"application/json", b"text/plain", VERTEX_AI + b"3"]
)
def test_other_types_are_json(content_type: bytes) -> None:
    assert header_length_text(content_type, SAGEMAKER) is None


def test_it_has_to_be_at_the_beginning() -> None:
    with pytest.raises(InvalidArgument, match="starts with 'application/vnd"):
        header_length_text(b" x/" + SAGEMAKER + b"1", SAGEMAKER)


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (b"", "Unable to parse inference header size, got: "),
        (b"x", "Unable to parse inference header size, got: x"),
        (
            b"2147483648",
            "Unable to parse inference header size, value is out of range, got: 2147483648",
        ),
    ],
)
def test_it_states_a_length(length: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        header_length_text(VERTEX_AI + length, VERTEX_AI)
    assert caught.value.message == text
