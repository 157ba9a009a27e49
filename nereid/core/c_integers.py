"""Parser of integers in text that works like C's stol, on which Triton's clients rely."""

from __future__ import annotations

import re
from typing import Final

_INTEGER: Final = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")
_MAX_CHARACTERS: Final = 63


def parse_c_integer(text: str) -> int | None:
    """Return the integer at the start of a text; None without digits.

    White space and a sign may come first, and the rest is ignored. Very many digits give a number
    beyond all of C's integer types.
    """
    match = _INTEGER.match(text)
    if match is None:
        return None
    return int(match[1]) if len(match[1]) <= _MAX_CHARACTERS else 1 << 64
