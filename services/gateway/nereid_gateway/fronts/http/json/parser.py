"""Parses JSON in requests as leniently as Triton, with Triton's error texts.

orjson refuses some documents that Triton accepts: NaN and Infinity, a byte-order mark, text after a
NUL, broken UTF-8, deep nesting. The standard library parses these again.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, Never

import orjson

from nereid.core.errors import Internal, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    _MakeObject = Callable[[list[tuple[str, Any]]], dict[str, Any]]

_BOM: Final = b"\xef\xbb\xbf"
_PREFIX: Final = "failed to parse the request JSON buffer: "

# The standard library's error text, and RapidJSON's text, which Triton's clients know.
_REASONS: Final = (
    ("Expecting property name", "Missing a name for object member."),
    ("Illegal trailing comma before end of object", "Missing a name for object member."),
    ("Illegal trailing comma before end of array", "Invalid value."),
    ("Expecting value", "Invalid value."),
    ("Expecting ':'", "Missing a colon after a name of object member."),
    ("Unterminated string", "Missing a closing quotation mark in string."),
    ("Extra data", "The document root must not be followed by other values."),
    ("Invalid \\", "Invalid escape character in string."),
    ("Invalid control character", "Invalid escape character in string."),
)


def parse(text: bytes) -> Any:
    """Return the document in a text. Raises Internal (500, as on Triton) if it is not JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _parse_leniently(text)


class RepeatedMembers(dict[str, Any]):
    """JSON object in which a member occurs twice. A look-up returns the member's first value."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(reversed(pairs))
        # In the order of the document. A repeated name occurs several times.
        self.names = [name for name, _ in pairs]


def parse_members(text: bytes, nested: str) -> Any:
    """Return the document in a text, and preserve repeated members of its object.

    If a member occurs twice in the object, or in the object's member `nested`, that object is a
    RepeatedMembers.
    """
    document = parse(text)
    if type(document) is not dict:
        return document
    members: Any = document.get(nested)
    count = len(document) + (len(members) if type(members) is dict else 0)
    # Each member has a colon. Further colons belong to repeated members, other objects or strings.
    if text.count(b":") <= count or _has_objects(document, nested):
        return document
    return _parse_leniently(text, _members)


def _has_objects(document: dict[str, Any], nested: str) -> bool:
    return any(
        type(element) in _CONTAINERS
        for name, value in document.items()
        if name != nested
        for element in (value if type(value) is list else (value,))
    )


_CONTAINERS: Final = (dict, list)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    return members if len(members) == len(pairs) else RepeatedMembers(pairs)


def _parse_leniently(text: bytes, make_object: _MakeObject | None = None) -> Any:
    body = text.removeprefix(_BOM).split(b"\0", 1)[0]
    if not body.strip():
        raise Internal(f"{_PREFIX}The document is empty. at {len(body)}")
    document = body.decode("utf-8", "surrogateescape")
    try:
        return _loads(document, make_object)
    except json.JSONDecodeError as error:
        if "Inf" not in document and "NaN" not in document:
            raise _refusal(error, document) from error
        # With repeated passes, a client could send a text in which each pass finds only one more
        # token.
        spelt_out = _TOKEN.sub(_spell_out, document)
    try:
        return _loads(spelt_out, make_object)
    except json.JSONDecodeError as error:
        raise _refusal(error, spelt_out) from error


def _refusal(error: json.JSONDecodeError, document: str) -> Internal:
    reason, position = _reason(error, document)
    position = len(document[:position].encode("utf-8", "surrogateescape"))
    return Internal(f"{_PREFIX}{reason} at {position}")


def _loads(document: str, make_object: _MakeObject | None) -> Any:
    try:
        if _LARGE_NUMBER.search(document):
            return json.loads(
                document,
                parse_float=_finite,
                parse_int=_integer,
                object_pairs_hook=make_object,
            )
        # Without callbacks, the standard library is several times as fast.
        return json.loads(document, object_pairs_hook=make_object)
    except _TooBigError as error:
        position = document.find(error.digits)
        raise Internal(f"{_PREFIX}Number too big to be stored in double. at {position}") from error
    except RecursionError as error:
        raise InvalidArgument(f"{_PREFIX}Nested too deeply.") from error


def _spell_out(match: re.Match[str]) -> str:
    return _SPELT_OUT.get(match[0], match[0])


class _TooBigError(Exception):
    """Raised for a number that no double can hold."""

    def __init__(self, digits: str) -> None:
        super().__init__(digits)
        self.digits = digits


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _TooBigError(digits)
    return value


def _integer(digits: str) -> int | float:
    """Return a number as orjson reads it: a double if it does not fit into 64 bits."""
    value = int(digits) if len(digits) <= 20 else None
    if value is not None and -(1 << 63) <= value < 1 << 64:
        return value
    return _finite(digits)


def _reason(error: json.JSONDecodeError, document: str) -> tuple[str, int]:
    """Return RapidJSON's reason, and its position: after the token that RapidJSON began to read."""
    position = error.pos
    for start, reason in _REASONS:
        if error.msg.startswith(start):
            if reason.startswith("Missing a closing"):
                position = len(document)
            elif reason == "Invalid value.":
                position += _begun(document, position)
            return reason, position
    if error.msg.startswith("Expecting ','"):
        if _FRACTION.match(document, position):
            return "Miss fraction part in number.", position + 1
        if exponent := _EXPONENT.match(document, position):
            return "Miss exponent in number.", exponent.end()
        bracket = _enclosing(document, error.pos)
        kind = "an array element" if bracket == "]" else "an object member"
        return f"Missing a comma or '{bracket}' after {kind}.", position
    return "Invalid value.", position


def _begun(document: str, position: int) -> int:
    begun = _BEGUN.match(document, position)
    return len(begun[0]) if begun else 0


# A decimal point or an exponent without digits after it.
_FRACTION: Final = re.compile(r"(?<=[0-9])\.(?![0-9])")
_EXPONENT: Final = re.compile(r"(?<=[0-9])[eE][+-]?(?![0-9])")
# The beginnings of null, true, false and a negative number.
_BEGUN: Final = re.compile(r"n(?:u(?:ll?)?)?|t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|-")
# A string, even without its closing quote. Matching never backtracks, so its cost is linear.
_STRING: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
# Strings, which stay as they are, and spellings of numbers that only RapidJSON accepts.
_TOKEN: Final = re.compile(_STRING.pattern + r"|-?\b(?:Inf|NaN)\b", re.DOTALL)
# Every number that is too large for a double or for 64 bits contains a match.
_LARGE_NUMBER: Final = re.compile(r"[0-9]{19}|[0-9][eE]\+?0*+[0-9]{3}")
_SPELT_OUT: Final = {"Inf": "Infinity", "-Inf": "-Infinity", "-NaN": "NaN"}


def _enclosing(document: str, position: int) -> str:
    """Return the opening bracket of the innermost container that is open at a position."""
    # A gateway starts without NumPy (core.deferred_imports).
    import numpy as np  # noqa: PLC0415

    text = _STRING.sub("", document[:position]).encode("ascii", "replace")
    brackets = np.frombuffer(text.translate(None, _NO_BRACKETS), np.uint8)[::-1]
    # From the right, the innermost open bracket is the first without a closing bracket.
    depths = np.cumsum(np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1))
    unclosed = np.flatnonzero(depths == 1)
    return "]" if unclosed.size and brackets[unclosed[0]] == ord("[") else "}"


_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def utf8(text: str) -> bytes:
    """Return a parsed string's bytes, or raise Internal for half a surrogate pair."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Internal(f"{_PREFIX}The surrogate pair in string is invalid.") from error


def printable(text: str) -> str:
    """Replace the characters that UTF-8 cannot encode. protobuf's string fields refuse them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def refuse_kind(wanted: str, field: str = "") -> Never:
    """Raise the error for a value of the wrong kind. field: the member's name, or empty."""
    prefix = f"Unable to parse '{field}': " if field else ""
    raise Internal(f"{prefix}attempt to access JSON non-{wanted} as {wanted}")


def as_string(value: Any, field: str = "") -> str:
    """Return value with unprintable characters replaced. Raises Internal if it is no string."""
    if type(value) is not str:
        refuse_kind("string", field)
    return printable(value)


def as_array(value: Any, field: str = "") -> list[Any]:
    """Return value, or raise Internal if it is no array."""
    if type(value) is not list:
        refuse_kind("array", field)
    return value


def as_unsigned(value: Any, field: str = "") -> int:
    """Return value, or raise Internal if it is no integer of at least 0."""
    if type(value) is not int or value < 0:
        refuse_kind("unsigned-integer", field)
    return value


def as_boolean(value: Any, field: str = "") -> bool:
    """Return value, or raise Internal if it is no boolean."""
    if type(value) is not bool:
        refuse_kind("boolean", field)
    return value


def member(document: Any, field: str) -> Any:
    """Return document[field], or raise Internal if there is no such member."""
    if type(document) is not dict or field not in document:
        raise Internal(
            f"Unable to parse '{field}': attempt to access non-existing object member '{field}'"
        )
    return document[field]


def string_member(document: Any, field: str) -> str:
    """Return document[field], or raise Internal if it is no string."""
    return as_string(member(document, field), field)


def array_member(document: Any, field: str) -> list[Any]:
    """Return document[field], or raise Internal if it is no array."""
    return as_array(member(document, field), field)


def write(document: Any) -> bytes:
    """Return a document as JSON text: NaN and Infinity bare, invalid UTF-8 as received."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=True).encode(
        "utf-8", "surrogateescape"
    )
