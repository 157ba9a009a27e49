"""JSON documents of requests, parsed as Triton's parser does, with its texts for what is refused.

orjson does nearly all of them. What it refuses and Triton takes (NaN and Infinity, a byte-order
mark, text after a NUL, broken UTF-8, nesting deeper than its limit) is tried again with the
standard library. Knows JSON only, nothing of tensors or models.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, Never

import orjson

from nereid.core.errors import Internal, InvalidArgument

_BOM: Final = b"\xef\xbb\xbf"
_PREFIX: Final = "failed to parse the request JSON buffer: "

# The standard library's words for a defect, and those of the parser that Triton's clients know.
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
    """The document that text holds.

    Raises:
        Internal: it is no JSON; Triton's clients get status 500 for that.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _parse_leniently(text)


def _parse_leniently(text: bytes) -> Any:
    body = text.removeprefix(_BOM).split(b"\0", 1)[0]
    if not body.strip():
        raise Internal(f"{_PREFIX}The document is empty. at {len(body)}")
    document = body.decode("utf-8", "surrogateescape")
    try:
        return _loads(document)
    except json.JSONDecodeError as error:
        spelt_out = _TOKEN.sub(_spell_out, document)
        if spelt_out != document:
            return _parse_leniently(spelt_out.encode("utf-8", "surrogateescape"))
        reason, position = _reason(error, document)
        position = len(document[:position].encode("utf-8", "surrogateescape"))
        raise Internal(f"{_PREFIX}{reason} at {position}") from error


def _loads(document: str) -> Any:
    try:
        return json.loads(document, parse_float=_finite, parse_int=_integer)
    except _TooBigError as error:
        position = document.find(error.digits)
        raise Internal(f"{_PREFIX}Number too big to be stored in double. at {position}") from error
    except RecursionError as error:
        raise InvalidArgument(f"{_PREFIX}Nested too deeply.") from error


def _spell_out(match: re.Match[str]) -> str:
    return _SPELT_OUT.get(match[0], match[0])


class _TooBigError(Exception):
    """A number that no double holds."""

    def __init__(self, digits: str) -> None:
        super().__init__(digits)
        self.digits = digits


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _TooBigError(digits)
    return value


def _integer(digits: str) -> int | float:
    """As orjson reads it: what no 64-bit integer holds is a double."""
    value = int(digits) if len(digits) <= 20 else None
    if value is not None and -(1 << 63) <= value < 1 << 64:
        return value
    return _finite(digits)


def _reason(error: json.JSONDecodeError, document: str) -> tuple[str, int]:
    """Why, and where: the parser that clients know stops behind what it has begun to read."""
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
    """How many characters of a value are there before the one that cannot belong to it."""
    begun = _BEGUN.match(document, position)
    return len(begun[0]) if begun else 0


# A point behind a number, and no digit; an exponent without digits.
_FRACTION: Final = re.compile(r"(?<=[0-9])\.(?![0-9])")
_EXPONENT: Final = re.compile(r"(?<=[0-9])[eE][+-]?(?![0-9])")
# Of null, true, false, a negative number.
_BEGUN: Final = re.compile(r"n(?:u(?:ll?)?)?|t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|-")
# Strings, so that nothing in them is touched, and spellings that only Triton's parser knows.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:Inf|NaN)\b')
_SPELT_OUT: Final = {"Inf": "Infinity", "-Inf": "-Infinity", "-NaN": "NaN"}


def _enclosing(document: str, position: int) -> str:
    """The bracket that closes the innermost container open at position."""
    open_brackets: list[str] = []
    in_string = escaped = False
    for character in document[:position]:
        if in_string:
            in_string = escaped or character != '"'
            escaped = not escaped and character == "\\"
        elif character == '"':
            in_string = True
        elif character in "[{":
            open_brackets.append("]" if character == "[" else "}")
        elif character in "]}" and open_brackets:
            open_brackets.pop()
    return open_brackets[-1] if open_brackets else "}"


def utf8(text: str) -> bytes:
    """The bytes of a parsed string; those that were no UTF-8 come back as they were.

    Raises:
        Internal: half a surrogate pair, which has no bytes.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Internal(f"{_PREFIX}The surrogate pair in string is invalid.") from error


def printable(text: str) -> str:
    """text, fit for a protobuf string field."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


# --- members, with Triton's texts ---------------------------------------------------------------


def refuse(field: str, wanted: str) -> Never:
    """Raise the error that tells that field is not of the wanted kind."""
    raise Internal(f"Unable to parse '{field}': attempt to access JSON non-{wanted} as {wanted}")


def member(document: Any, field: str) -> Any:
    """document[field], which must exist."""
    if type(document) is not dict or field not in document:
        raise Internal(
            f"Unable to parse '{field}': attempt to access non-existing object member '{field}'"
        )
    return document[field]


def string(document: Any, field: str) -> str:
    """document[field], which must be a string."""
    value = member(document, field)
    if type(value) is not str:
        refuse(field, "string")
    return printable(value)


def array(document: Any, field: str) -> list[Any]:
    """document[field], which must be an array."""
    value = member(document, field)
    if type(value) is not list:
        refuse(field, "array")
    return value


def unsigned(value: Any, field: str) -> int:
    """value, which must be an unsigned integer."""
    if type(value) is not int or value < 0:
        refuse(field, "unsigned-integer")
    return value


def boolean(value: Any, field: str) -> bool:
    """value, which must be true or false."""
    if type(value) is not bool:
        refuse(field, "boolean")
    return value


# --- writing ------------------------------------------------------------------------------------


def write(document: Any) -> bytes:
    """The JSON text of document; NaN and Infinity as bare tokens, broken text as it came."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=True).encode(
        "utf-8", "surrogateescape"
    )


def error_body(message: str) -> bytes:
    """What every failed HTTP request is answered with."""
    return orjson.dumps({"error": printable(message)})
