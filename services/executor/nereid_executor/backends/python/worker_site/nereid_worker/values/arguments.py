"""Conversion of arguments that models pass, by pybind11's rules as in Triton's API.

Anything else raises TypeError. bytes count as a text. An integer is whatever converts to one,
except a float. A boolean needs `__bool__`. `what` names the argument in the error's text.
"""

from __future__ import annotations

from operator import index
from typing import Any

_NO_LISTS = (str, bytes, dict)


def text_of(value: Any, what: str) -> str:
    """Return a str, or UTF-8 bytes as a str. A str must be encodable as UTF-8."""
    try:
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, str):
            value.encode()
            return str.__str__(value)
    except UnicodeError as error:
        raise TypeError(f"{what}: {error}") from None
    raise _mismatch(what, "a text", value)


def unsigned(value: Any, what: str, bits: int = 32) -> int:
    """Return the value as an unsigned integer that fits this number of bits."""
    return _integer(value, what, 0, 1 << bits)


def signed(value: Any, what: str) -> int:
    """Return the value as a signed integer that fits 64 bits."""
    return _integer(value, what, -(1 << 63), 1 << 63)


def _integer(value: Any, what: str, low: int, end: int) -> int:
    try:
        number = index(value)
    except TypeError:
        if isinstance(value, float) or not hasattr(value, "__int__"):
            raise _mismatch(what, "an integer", value) from None
        number = int(value)
    if not low <= number < end:
        raise TypeError(f"{what}: {number} is out of range")
    return number


def number_of(value: Any, what: str) -> float:
    """Return the value, a number, as a float."""
    if not hasattr(value, "__float__"):
        raise _mismatch(what, "a number", value)
    return float(value)


def boolean(value: Any, what: str) -> bool:
    """Return the value's truth value; refuse None, texts and collections."""
    if value is None or not hasattr(value, "__bool__"):
        raise _mismatch(what, "a bool", value)
    return bool(value)


def list_of(value: Any, what: str) -> list[Any]:
    """Return a new list of a sequence's elements; refuse texts and dictionaries."""
    if isinstance(value, _NO_LISTS) or not hasattr(value, "__getitem__"):
        raise _mismatch(what, "a list", value)
    return list(value)


def instance_of(value: Any, kind: type, what: str) -> Any:
    """Return the value itself, which must be an instance of this class."""
    if not isinstance(value, kind):
        raise _mismatch(what, f"a {kind.__name__}", value)
    return value


def _mismatch(what: str, expected: str, value: Any) -> TypeError:
    return TypeError(f"{what}: expected {expected}, got {type(value).__name__}")
