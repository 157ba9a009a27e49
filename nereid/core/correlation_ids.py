"""Correlation ids: numbers or texts with which clients mark the requests of a sequence.

A number is unsigned with 64 bits. gRPC's field is signed, so the largest number arrives as -1.
Requests keep the value as it arrived, because responses of ensembles repeat it.
"""

from __future__ import annotations

from typing import Final

from nereid.core.errors import Unimplemented

CorrelationId = int | str

MAX_TEXT_BYTES: Final = 128
_UINT64: Final = (1 << 64) - 1


def check_length(text: str) -> None:
    """Raise Unimplemented if a text is too long. The limit is in bytes, as in Triton."""
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        raise Unimplemented(
            f"string correlation ID cannot be longer than {MAX_TEXT_BYTES} characters"
        )


def as_unsigned(number: int) -> int:
    """Return the unsigned number with the same 64 bits as a signed field's value."""
    return number & _UINT64


def as_signed(number: int) -> int:
    """Return the signed field's value with the same 64 bits as an unsigned number."""
    return number - (1 << 64) if number >= 1 << 63 else number
