"""Correlation ids: by which clients say what sequence a request belongs to.

A number is unsigned and of 64 bits; a text has a bound.
"""

from __future__ import annotations

from typing import Final

from nereid.core.errors import Unimplemented

MAX_TEXT_BYTES: Final = 128
_UINT64_END: Final = 1 << 64


def check_correlation_id(value: int | str) -> int | str:
    """The id that a client's value stands for.

    Raises:
        Unimplemented: a text is too long.
    """
    if isinstance(value, int):
        return value % _UINT64_END
    if len(value) > MAX_TEXT_BYTES // 4 and len(value.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        raise Unimplemented(
            f"string correlation ID cannot be longer than {MAX_TEXT_BYTES} characters"
        )
    return value
