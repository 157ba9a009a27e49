"""Integers in text as C's stol parses them, which Triton's clients rely on."""

from __future__ import annotations

import re
from typing import Final

_INTEGER: Final = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")
_MAX_CHARACTERS: Final = 63


def parse_c_integer(text: str) -> int | None:
    """Return the integer at the start of a text, or None if there are no digits.

    White space and a sign may come before the digits; the rest of the text is ignored. Numbers with
    very many digits are returned as a number beyond any range that C knows.
    """
    match = _INTEGER.match(text)
    if match is None:
        return None
    return int(match[1]) if len(match[1]) <= _MAX_CHARACTERS else 1 << 64
