"""Parses the JSON of a configuration override as leniently as Triton does (by protobuf's parser).

Beyond JSON it accepts, as measured on the real server: keys without quotes, single quotes, a comma
behind the last element, control characters, needless escapes, `3.`, one value for a list, null in
lists, "true", and enums in any case and with dashes. Time is linear.
"""

from __future__ import annotations

import json
import re
from bisect import bisect
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

# Python code reads text that is not plain JSON, which is slow.
_MAX_LENIENT: Final = 256 << 10
# Each alternative consumes all characters that it has examined, so none is examined twice.
_TOKEN: Final = re.compile(
    r"""
    "(?P<double>(?:[^"\\]|\\.|\\\Z)*+)(?P<double_end>"|\Z)
    | '(?P<single>(?:[^'\\]|\\.|\\\Z)*+)(?P<single_end>'|\Z)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*+)(?P<colon>\s*+:)?
    | (?P<first>[\[{]\s*+,)
    | (?P<last>,)(?=\s*+[\]}])
    | (?P<point>[0-9]\.)(?![0-9])
    | (?P<space>[\v\f])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_KEYWORD: Final = re.compile("true|false|null")
_ESCAPE: Final = re.compile(r'\\(.)|"', re.DOTALL)
_ESCAPED: Final = frozenset('"\\/bfnrtu')
_BOOLEANS: Final = {"true": True, "false": False}


def parse_object(text: str) -> dict[str, Any]:
    """Return the text's object; raise ValueError, or RecursionError if it is too deep."""
    try:
        document = json.loads(text)
    except ValueError as error:
        if len(text) > _MAX_LENIENT:
            raise ValueError(
                f"{error}; what is no plain JSON may have {_MAX_LENIENT} characters"
            ) from error
        document = _parse_lenient(text)
    if type(document) is not dict:
        raise ValueError("it must be a JSON object")
    return document


def as_declared(document: dict[str, Any], message: Descriptor) -> dict[str, Any]:
    """Return the object with values in the form that json_format expects for each field."""
    fields = {**message.fields_by_camelcase_name, **message.fields_by_name}
    return {
        name: value if (field := fields.get(name)) is None else _value(value, field)
        for name, value in document.items()
    }


def _value(value: Any, field: FieldDescriptor) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        of_value = kind.fields_by_name["value"]
        if type(value) is not dict:
            return value
        return {name: _element(element, of_value) for name, element in value.items()}
    if not field.is_repeated or value is None:
        return _element(value, field)
    elements = value if type(value) is list else [value]
    return [_element(element, field) for element in elements if element is not None]


def _element(value: Any, field: FieldDescriptor) -> Any:
    if type(value) is dict and field.message_type is not None:
        return as_declared(value, field.message_type)
    if type(value) is str and field.enum_type is not None:
        name = value.upper().replace("-", "_")
        return name if name in field.enum_type.values_by_name else value
    if type(value) is str and field.cpp_type == field.CPPTYPE_BOOL:
        return _BOOLEANS.get(value, value)
    return value


def _parse_lenient(text: str) -> Any:
    parts: list[str] = []
    # Positions after each token: in the text that is built, and in the original text.
    made, read = [0], [0]
    size = end = 0
    for token in _TOKEN.finditer(text):
        for part in (text[end : token.start()], _strict(token)):
            parts.append(part)
            size += len(part)
        end = token.end()
        made.append(size)
        read.append(end)
    parts.append(text[end:])
    try:
        return json.loads("".join(parts), strict=False)
    except json.JSONDecodeError as error:
        index = bisect(made, error.pos) - 1
        place = min(read[index] + error.pos - made[index], len(text))
        raise json.JSONDecodeError(error.msg, text, place) from None


def _strict(token: re.Match[str]) -> str:
    """Return plain JSON for a token; empty if the token has to go."""
    kind = token.lastgroup
    if kind in ("double_end", "single_end"):
        if not token[kind]:
            return token[0]
        return f'"{_ESCAPE.sub(_escape, token[kind.removesuffix("_end")])}"'
    if kind == "colon" and not _KEYWORD.match(token["name"]):
        return f'"{token["name"]}"{token["colon"]}'
    if kind == "last":
        return ""
    if kind == "point":
        return f"{token[0]}0"
    return " " if kind == "space" else token[0]


def _escape(match: re.Match[str]) -> str:
    character = match[1]
    if character is None:
        return '\\"'
    return match[0] if character in _ESCAPED else character
