"""Counts the elements of raw BYTES tensors and checks their framing, with Triton's texts.

The gateway does this because every service behind it treats a tensor as opaque bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from nereid.core.errors import InvalidArgument

_unpack_length = Struct("<I").unpack_from


class StringInput(NamedTuple):
    """One BYTES input of a request."""

    position: int
    name: str
    model: str
    elements: int


def prefix(request_id: str) -> str:
    """The beginning of the texts of Triton's core."""
    return f"[request id: {request_id or '<id_unknown>'}] "


def check(raw: bytes | memoryview, tensor: StringInput, request_id: str) -> None:
    """Check that raw frames exactly as many elements as the shape has.

    Raises:
        InvalidArgument: too few or too many elements, or a damaged frame.
    """
    size, position, count, expected = len(raw), 0, 0, tensor.elements
    while position < size:
        if position + 4 > size:
            raise InvalidArgument(
                f"{prefix(request_id)}incomplete string length indicator for inference input"
                f" '{tensor.name}' for model '{tensor.model}', expecting 4 bytes but only"
                f" {size - position} bytes available. Please make sure the string length"
                " indicator is in one buffer."
            )
        length = _unpack_length(raw, position)[0]
        position += 4
        count += 1
        if count > expected:
            raise InvalidArgument(
                f"{prefix(request_id)}unexpected number of string elements {count} for inference"
                f" input '{tensor.name}' for model '{tensor.model}', expecting {expected}"
            )
        if position + length > size:
            if count < expected:
                break
            raise InvalidArgument(
                f"incomplete string data for inference input '{tensor.name}', expecting string of"
                f" length {length} but only {size - position} bytes available",
                accepted=True,
            )
        position += length
    if count != expected:
        raise InvalidArgument(
            f"{prefix(request_id)}expected {expected} string elements for inference input"
            f" '{tensor.name}' for model '{tensor.model}', got {count}"
        )
