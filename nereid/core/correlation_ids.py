"""Correlation ids: the client's number or text for a sequence of requests.

A number is unsigned and of 64 bits; gRPC's field is signed, so that -1 arrives for the largest one.
Requests keep what arrived, because responses of ensembles repeat it.
"""

from __future__ import annotations

from typing import Final

from nereid.core.errors import Unimplemented

CorrelationId = int | str

MAX_TEXT_BYTES: Final = 128
_UINT64: Final = (1 << 64) - 1


def check_length(text: str) -> None:
    """Raise Unimplemented if a text is too long for a correlation id; Triton counts bytes."""
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        raise Unimplemented(
            f"string correlation ID cannot be longer than {MAX_TEXT_BYTES} characters"
        )


def as_unsigned(number: int) -> int:
    """The number that is meant by a signed one."""
    return number & _UINT64


def as_signed(number: int) -> int:
    """The number that the protocols' signed fields have for an unsigned one."""
    return number - (1 << 64) if number >= 1 << 63 else number
