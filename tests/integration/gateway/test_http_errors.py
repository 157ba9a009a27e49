"""Invalid bodies, each with Triton's status and text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.gateway.gateway_http import FLOATS, INFER, ask
from tests.support.gateway.gateway_site import GatewaySite, gateway_site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

INPUT = {"name": "INPUT0", "shape": [2], "datatype": "FP32", "data": [1, 2]}
JSON = "failed to parse the request JSON buffer: "
ONE_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters',"
    " 'shared_memory_region' in 'parameters'. But "
)
TRITON_KEYS = (
    "parameter keys starting with 'triton_' are reserved for Triton usage and should not be"
    " specified."
)


def kind(field: str, wanted: str, verb: str = "parse") -> str:
    return f"Unable to {verb} '{field}': attempt to access JSON non-{wanted} as {wanted}"


def missing(field: str) -> str:
    return f"Unable to parse '{field}': attempt to access non-existing object member '{field}'"


def number(token: str) -> bytes:
    return b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"FP32","data":[%b]}]}' % (
        token.encode()
    )


def any_of(*values: Any) -> tuple[Any, ...]:
    return values


UNSIGNED, STRING, BOOLEAN, ARRAY = "unsigned-integer", "string", "boolean", "array"
CUSTOM = "parameter 'foo' has invalid type. It should be either 'int', 'bool', or 'string'."
COMMA = "Missing a comma or ']' after an array element."

BODIES: list[tuple[bytes, str]] = [
    (number("nan"), JSON + "Invalid value. at 67"),
    (number("1e400"), JSON + "Number too big to be stored in double. at 66"),
    (number("+1"), JSON + "Invalid value. at 66"),
    (number(".5"), JSON + "Invalid value. at 66"),
    (number("1."), JSON + "Miss fraction part in number. at 68"),
    (number("01"), JSON + COMMA + " at 67"),
    (number("0x10"), JSON + COMMA + " at 67"),
    (b"{}", missing("inputs")),
    (b"[]", missing("inputs")),
    (b"5", missing("inputs")),
    (b'"x"', missing("inputs")),
    (b"null", missing("inputs")),
    (b" ", JSON + "The document is empty. at 1"),
    (
        b'{"inputs":[]} x',
        JSON + "The document root must not be followed by other values. at 14",
    ),
    (b'{"inputs":[],}', JSON + "Missing a name for object member. at 13"),
    (b'/*x*/{"inputs":[]}', JSON + "Invalid value. at 0"),
    (b"{'inputs':[]}", JSON + "Missing a name for object member. at 1"),
    (b'{"inputs":{}}', kind("inputs", ARRAY)),
    (b'{"inputs":null}', kind("inputs", ARRAY)),
]
# What the input has in place of INPUT's members; ... stands for none.
INPUTS: list[tuple[dict[str, Any], int, str]] = [
    *(({"data": value}, 500, kind("data", ARRAY)) for value in any_of(1, "x", None, {})),
    *(
        ({"data": value}, 500, kind("data", "number").replace("as number", "as double"))
        for value in ([True, 1], ["a", 1], [None, 1])
    ),
    *(
        (
            {"data": value},
            500,
            "Unable to parse 'data': Shape does not match true shape of 'data' field",
        )
        for value in ([1], [1, 2, 3])
    ),
    *(({"shape": value}, 500, kind("shape", ARRAY)) for value in (2, None)),
    *(({"shape": [value]}, 500, kind("shape", UNSIGNED)) for value in (-1, 2.0, "2", 1 << 64)),
    *(({name: ...}, 500, missing(name)) for name in ("name", "shape", "datatype")),
    *(({name: 5}, 500, kind(name, STRING)) for name in ("name", "datatype")),
    *(
        ({"datatype": value}, 400, "invalid datatype for input INPUT0")
        for value in ("FP99", "fp32", "")
    ),
    ({"data": ...}, 400, ONE_SOURCE + "no field is set"),
    (
        {"parameters": {"binary_data_size": 8}},
        400,
        ONE_SOURCE + "set 'data' 'binary_data_size'",
    ),
    (
        {"datatype": "FP16"},
        400,
        (
            "receiving FP16 data via JSON is not supported. Please use the binary data format for"
            " input INPUT0"
        ),
    ),
]
PARAMETERS: list[tuple[Any, int, str]] = [
    *(
        ({name: value}, 500, kind(name, UNSIGNED))
        for name in ("priority", "timeout")
        for value in (-1, "1", 1.5, None, True)
    ),
    *(
        ({"sequence_id": value}, 500, kind("sequence_id", STRING))
        for value in (1.5, -1, None, True, [1])
    ),
    *(
        ({name: value}, 500, kind(name, BOOLEAN))
        for name in ("sequence_start", "sequence_end", "binary_data_output")
        for value in (1, "x", None)
    ),
    *(({"foo": value}, 400, CUSTOM) for value in any_of(None, [1], {"a": 1})),
    ({"triton_x": 1}, 400, TRITON_KEYS),
    ({"triton_enable_empty_final_response": True}, 400, TRITON_KEYS),
    *(
        (value, 500, "failed to get request params.: attempt to get members for non-object")
        for value in any_of([], None, "x")
    ),
]
OUTPUTS: list[tuple[Any, str]] = [
    ({}, kind("outputs", ARRAY)),
    (None, kind("outputs", ARRAY)),
    *(([value], missing("name")) for value in any_of({}, 5, None)),
    ([{"name": 5}], kind("name", STRING)),
    *(
        ([{"name": "OUTPUT0", "parameters": {"binary_data": value}}], kind("binary_data", BOOLEAN))
        for value in (1, None)
    ),
    *(
        (
            [{"name": "OUTPUT0", "parameters": {"classification": value}}],
            kind("classification", UNSIGNED, "set"),
        )
        for value in (1.5, -1, "x")
    ),
]


def cases() -> list[tuple[bytes, int, str]]:
    table = [(body, 500, text) for body, text in BODIES]
    documents: list[tuple[Any, int, str]] = []
    for change, status, text in INPUTS:
        members = {name: value for name, value in {**INPUT, **change}.items() if value is not ...}
        documents.append(({"inputs": [members]}, status, text))
    documents += [({"inputs": [value]}, 400, ONE_SOURCE + "no field is set") for value in (5, None)]
    for parameters, status, text in PARAMETERS:
        documents.append(({"inputs": [INPUT], "parameters": parameters}, status, text))
    for outputs, text in OUTPUTS:
        documents.append(({"inputs": [INPUT], "outputs": outputs}, 500, text))
    for value in (5, None, True, ["x"]):
        documents.append(({"id": value, "inputs": [INPUT]}, 500, kind("id", STRING)))
    return table + [(json.dumps(each).encode(), status, text) for each, status, text in documents]


@pytest.fixture
async def site() -> AsyncIterator[GatewaySite]:
    async with gateway_site() as made:
        yield made


async def test_invalid_bodies(site: GatewaySite) -> None:
    for body, status, text in cases():
        response = await ask(site, "POST", INFER, body)
        assert response[:2] == (status, "application/json"), body
        assert json.loads(response.body) == {"error": text}, body


@pytest.mark.parametrize(
    ("length", "status"),
    [
        ("{}", 200),
        (" {} ", 200),
        ("+{}", 200),
        ("{},5", 200),
        ("0", 200),
        ("x", 200),
        ("", 200),
        ("0x10", 200),
        ("-0", 200),
        ("1.5", 500),
        ("-1", 400),
        ("99999", 400),
    ],
)
async def test_lengths_of_the_header(site: GatewaySite, length: str, status: int) -> None:
    members = {**INPUT, "parameters": {"binary_data_size": 8}}
    del members["data"]
    header = json.dumps({"inputs": [members]}).encode()
    # As a raw request it is whatever many numbers.
    header += b" " * (-len(header) % 4)
    response = await ask(
        site,
        "POST",
        INFER,
        header + FLOATS,
        Inference_Header_Content_Length=length.format(len(header)),
    )
    assert response.status == status, response.body


@pytest.mark.parametrize(
    ("size", "status"), [(8, 200), (4, 400), (16, 400), (-1, 500), ("8", 500), (8.0, 500)]
)
async def test_sizes_of_binary_inputs(site: GatewaySite, size: Any, status: int) -> None:
    members = {**INPUT, "parameters": {"binary_data_size": size}}
    del members["data"]
    header = json.dumps({"inputs": [members]}).encode()
    response = await ask(
        site, "POST", INFER, header + FLOATS, Inference_Header_Content_Length=str(len(header))
    )
    assert (response.status, response.content_type) == (status, "application/json")
