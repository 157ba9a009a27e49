"""What models pass, as the real API's signatures take it: everything else raises TypeError.

Like pybind11: bytes are texts, whatever converts to an integer is one unless it is a float, and
only what has a truth value of its own is a boolean.
"""

from __future__ import annotations

from operator import index
from typing import Any

_NO_LISTS = (str, bytes, dict)


def text_of(value: Any, what: str) -> str:
    """A text, str or bytes."""
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
    """An integer of so many bits, without a sign."""
    return _integer(value, what, 0, 1 << bits)


def signed(value: Any, what: str) -> int:
    """An integer of 64 bits."""
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
    """A number."""
    if not hasattr(value, "__float__"):
        raise _mismatch(what, "a number", value)
    return float(value)


def boolean(value: Any, what: str) -> bool:
    """A truth value; None, texts and collections are none."""
    if value is None or not hasattr(value, "__bool__"):
        raise _mismatch(what, "a bool", value)
    return bool(value)


def list_of(value: Any, what: str) -> list[Any]:
    """A list of its own, of any sequence but a text."""
    if isinstance(value, _NO_LISTS) or not hasattr(value, "__getitem__"):
        raise _mismatch(what, "a list", value)
    return list(value)


def instance_of(value: Any, kind: type, what: str) -> Any:
    """The same value, which is of this class."""
    if not isinstance(value, kind):
        raise _mismatch(what, f"a {kind.__name__}", value)
    return value


def _mismatch(what: str, expected: str, value: Any) -> TypeError:
    return TypeError(f"{what}: expected {expected}, got {type(value).__name__}")
