"""JSON documents: what is accepted, what is refused, and with which texts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from nereid.core.errors import Internal, InvalidArgument
from nereid_gateway.fronts.http.json import parser

PREFIX = "failed to parse the request JSON buffer: "


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "The document is empty. at 0"),
        (b"\0", "The document is empty. at 0"),
        (b"{", "Missing a name for object member. at 1"),
        (b"[nan]", "Invalid value. at 2"),
        (b"[nulx]", "Invalid value. at 4"),
        (b"[1e]", "Miss exponent in number. at 3"),
        (b"[Xf]", "Invalid value. at 1"),
        (b'["\xc3\xa9", -]', "Invalid value. at 8"),
        (b"[1 2]", "Missing a comma or ']' after an array element."),
        (b'{"a":1 "b":2}', "Missing a comma or '}' after an object member."),
        (b'{"a":"\\"[" "b":2}', "Missing a comma or '}' after an object member."),
        (b'{"a":[[1], 2 3]}', "Missing a comma or ']' after an array element."),
        (b'{"a" 1}', "Missing a colon after a name of object member."),
        (b'{"a', "Missing a closing quotation mark in string. at 3"),
        (b'"\\x"', "Invalid escape character in string."),
        (b"{}zz", "The document root must not be followed by other values. at 2"),
        (b"[" + b"-" * 20_000 + b"NaN]", "Invalid value. at 2"),
        (b"[" + b"--Inf," * 20_000 + b"NaN]", "Invalid value. at 2"),
        (b'["' + b'\\"' * 20_000, "Missing a closing quotation mark in string. at 40002"),
        (b'{"a":[' + b"[{}]," * 20_000 + b'"]" 1]}', "Missing a comma or ']' after an array el"),
        (b'[{"a":' + b"[{}]," * 20_000 + b"1 2", "Missing a name for object member."),
        (b'{"a":' + b"[" * 300 + b"]" * 300 + b" 1", "Missing a comma or '}' after an object"),
        (b"[1, 1e400]", "Number too big to be stored in double. at 4"),
        (b"[" + b"9" * 400 + b", NaN]", "Number too big to be stored in double."),
    ],
)
def test_invalid_documents_are_refused_with_tritons_texts(text: bytes, reason: str) -> None:
    with pytest.raises(Internal) as caught:
        parser.parse(text)
    assert caught.value.message.startswith(PREFIX + reason)


@pytest.mark.parametrize(
    ("text", "document"),
    [
        (b"\xef\xbb\xbf{}", {}),
        (b"{}\0trailing", {}),
        (b"[Infinity, -Infinity]", [math.inf, -math.inf]),
        (b'[Inf, -Inf, "Inf \\" -NaN"]', [math.inf, -math.inf, 'Inf " -NaN']),
        (b"[NaN, 18446744073709551615]", None),
        (b'"\xff"', "\udcff"),
        (b"[NaN, 18446744073709551616, -9223372036854775808, 1.5]", None),
    ],
)
def test_some_of_what_strict_parsers_refuse_is_accepted(text: bytes, document: Any) -> None:
    parsed = parser.parse(text)
    if document is None:
        assert math.isnan(parsed[0])
        assert [type(each) for each in parsed[1:]] == [
            int if b"615" in text else float,
            *([int, float] if len(parsed) > 2 else []),
        ]
    else:
        assert parsed == document


def test_nesting_is_limited_by_the_server_not_by_the_protocol() -> None:
    assert parser.parse(b"[" * 200 + b"]" * 200)
    with pytest.raises(InvalidArgument):
        parser.parse(b"[" * 200000)


def test_strings_keep_the_bytes_they_came_as() -> None:
    assert parser.utf8(parser.parse(b'"\xff\xc3\xa9"')) == b"\xff\xc3\xa9"
    with pytest.raises(Internal, match="surrogate pair"):
        parser.utf8("\ud800")
    assert parser.printable("\udcff") == "?"
    assert parser.printable("é") == "é"


def test_members_are_checked_with_tritons_texts() -> None:
    document = {"name": 5, "shape": "x", "id": "a"}
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: parser.member([], "inputs"), "access non-existing object member 'inputs'"),
        (lambda: parser.string_member(document, "name"), "access JSON non-string as string"),
        (lambda: parser.array_member(document, "shape"), "access JSON non-array as array"),
        (lambda: parser.as_unsigned(-1, "shape"), "JSON non-unsigned-integer as unsigned-integer"),
        (lambda: parser.as_unsigned(True, "shape"), "JSON non-unsigned-integer as unsigned-intege"),
        (lambda: parser.as_boolean(1, "shape"), "access JSON non-boolean as boolean"),
    ]
    for ask, words in cases:
        with pytest.raises(Internal, match=words):
            ask()
    assert parser.string_member(document, "id") == "a"


def test_writing_what_strict_json_cannot_represent() -> None:
    text = parser.write({"data": [math.nan, math.inf, "\udcff", "é"]})
    assert text == b'{"data":[NaN,Infinity,"\xff","\xc3\xa9"]}'


@pytest.mark.parametrize(
    "text",
    [
        b"[1" + b"0" * 18 + b", NaN]",
        b"[-9223372036854775809, NaN]",
        b"[18446744073709551616, NaN]",
        b"[1e308, 1e-400, 0.1, NaN]",
        b"[1.5, -0.0, 12, NaN]",
        b"[1E+00007, 123456789012345678901234567890, Inf]",
    ],
)
def test_numbers_are_read_alike_beside_tokens_that_only_rapidjson_knows(text: bytes) -> None:
    lenient = parser.parse(text)[:-1]
    strict = parser.parse(text.rpartition(b",")[0] + b"]")
    assert lenient == strict
    assert list(map(type, lenient)) == list(map(type, strict))


@pytest.mark.parametrize(
    ("text", "document"),
    [
        (b'{"a":1,"a":2}', {"a": 1}),
        (b'{"p":{"a":1,"a":2},"b":3}', {"p": {"a": 1}, "b": 3}),
        # No text that is longer than it has to be is looked at again with objects in it.
        (b'{"a":1,"a":2,"b":{}}', {"a": 2, "b": {}}),
        (b'{"a":1,"a":2,"b":[{}]}', {"a": 2, "b": [{}]}),
        (b"[1]", [1]),
    ],
)
def test_members_that_come_twice(text: bytes, document: Any) -> None:
    assert parser.parse_members(text, "p") == document


def test_repeated_members_keep_their_order() -> None:
    found = parser.parse_members(b'{"b":1,"a":2,"b":3,"c":4}', "p")
    assert (found, found.names) == ({"b": 1, "a": 2, "c": 4}, ["b", "a", "b", "c"])
