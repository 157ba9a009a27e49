"""Correlation ids: the client's number or text for a sequence of requests.

A number is unsigned and has 64 bits; gRPC's field is signed, so that the largest one arrives as -1.
Requests keep the value that arrived, because responses of ensembles repeat it.
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
    """Return the unsigned number that a signed field stands for."""
    return number & _UINT64


def as_signed(number: int) -> int:
    """Return the number that the protocols' signed fields have for an unsigned one."""
    return number - (1 << 64) if number >= 1 << 63 else number
