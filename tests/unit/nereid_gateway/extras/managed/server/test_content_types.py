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
    assert header_length_text(binary_type, binary_type) == b""


@pytest.mark.parametrize(
    "content_type", [b"", b"application/json", b"text/plain", VERTEX_AI + b"3"]
)
def test_other_types_are_json(content_type: bytes) -> None:
    assert header_length_text(content_type, SAGEMAKER) is None


def test_it_has_to_be_at_the_beginning() -> None:
    with pytest.raises(InvalidArgument, match="starts with 'application/vnd"):
        header_length_text(b" x/" + SAGEMAKER + b"1", SAGEMAKER)
