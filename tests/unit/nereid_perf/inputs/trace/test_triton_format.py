"""Trace files of Triton and Nereid."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.tensors.byte_elements import join_bytes
from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.trace.record import TraceInput, TraceLimits, TraceRecord
from nereid_perf.inputs.trace.triton_format import read_array


def moment(number: int, name: str, ns: int) -> dict[str, Any]:
    return {"id": number, "timestamps": [{"name": name, "ns": ns}]}


def tensor(number: int, data: str, datatype: str = "FP32", shape: str = "1,2") -> dict[str, Any]:
    described = {"name": "X", "data": data, "shape": shape, "dtype": datatype}
    return {"id": number, "activity": "TENSOR_QUEUE_INPUT", "tensor": described}


TRACE = [
    moment(1, "HTTP_RECV_START", 100),
    moment(1, "HTTP_RECV_END", 110),
    {"id": 1, "model_name": "ensemble", "model_version": 1, "request_id": "a"},
    moment(1, "REQUEST_START", 120),
    tensor(1, "1.5,2"),
    # A step of the ensemble.
    {"id": 2, "model_name": "step", "model_version": 1, "parent_id": 1},
    moment(2, "REQUEST_START", 130),
    moment(3, "GRPC_WAITREAD_START", 10),
    moment(3, "GRPC_WAITREAD_END", 200),
    {"id": 3, "model_name": "plain", "model_version": 1},
    moment(3, "REQUEST_START", 210),
    {"id": 4, "model_name": "inside", "model_version": 1},
    moment(4, "REQUEST_START", 300),
    {"id": 4, "activity": "TENSOR_BACKEND_OUTPUT", "tensor": {}},
]


def read(text: str, limits: TraceLimits | None = None) -> list[TraceRecord]:
    return [*read_array("t.json", io.StringIO(text), limits or TraceLimits())]


def inputs(*tensors: dict[str, Any]) -> tuple[TraceInput, ...] | None:
    start = moment(1, "REQUEST_START", 1)
    (record,) = read(json.dumps([{"id": 1, "model_name": "m"}, start, *tensors]))
    return record.inputs


@pytest.mark.parametrize("indent", [None, 4])
def test_requests_without_a_parent_at_their_arrival(indent: int | None) -> None:
    found = read(json.dumps(TRACE, indent=indent))
    assert [(each.model, each.at_ns, each.place) for each in found] == [
        ("ensemble", 100, "t.json: request 1"),
        ("plain", 200, "t.json: request 3"),
        ("inside", 300, "t.json: request 4"),
    ]
    raw = np.array([1.5, 2], "<f4").tobytes()
    assert found[0].inputs == (TraceInput("X", (1, 2), "FP32", raw=raw),)
    assert found[1].inputs is None


def test_file_that_is_longer_than_what_is_read_at_a_time() -> None:
    many = [
        each
        for n in range(5000)
        for each in ({"id": n, "model_name": "m" * (n % 50 + 1)}, moment(n, "REQUEST_START", n))
    ]
    text = json.dumps(many)
    assert len(text) > 5 * (1 << 16)
    assert [each.at_ns for each in read(text)] == [*range(5000)]
    large = tensor(0, ",".join(["1"] * 200_000), "INT32", "200000")
    found = read(json.dumps([*many, large]))[0].inputs
    assert found is not None
    assert len(found[0].raw or b"") == 800_000


@pytest.mark.parametrize(
    ("data", "datatype", "raw"),
    [
        ("0,1", "BOOL", b"\0\1"),
        ("-1,127", "INT8", b"\xff\x7f"),
        ("1.5,inf", "FP64", np.array([1.5, np.inf]).tobytes()),
        ('"a","b,c"', "BYTES", join_bytes(["a", "b,c"])),
        ("", "FP32", None),
    ],
)
def test_data_of_inputs(data: str, datatype: str, raw: bytes | None) -> None:
    assert inputs(tensor(1, data, datatype)) == (TraceInput("X", (1, 2), datatype, raw=raw),)


def test_strings_with_quotation_marks_are_made_up_of_their_length() -> None:
    assert inputs(tensor(1, '"a","b","c"', "BYTES")) == (
        TraceInput("X", (1, 2), "BYTES", string_bytes=2),
    )
    assert inputs(tensor(1, '""', "BYTES", "1")) == (TraceInput("X", (1,), "BYTES", raw=bytes(4)),)


def test_equal_inputs_have_equal_keys() -> None:
    objects: list[dict[str, Any]] = []
    for number, data in ((1, "1,2"), (2, "1,2"), (3, "1,3")):
        objects += [{"id": number, "model_name": "m"}, moment(number, "REQUEST_START", 1)]
        objects.append(tensor(number, data))
    one, same, other = read(json.dumps(objects))
    assert one.key == same.key
    assert one.key != other.key


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("", "t.json: expected a JSON array"),
        ("{}", "t.json: expected a JSON array"),
        ("[", "object 1: expected JSON: the file ends"),
        ('[{"id": 1}', "object 2: expected a comma before it, or the array's end"),
        ('[{"id": 1},', "object 2: expected JSON: the file ends"),
        ('[{"id": 1} {"id": 1}]', "object 2: expected a comma"),
        ('[{"id": 1},]', "object 2: expected JSON"),
        ('[{"id": 1}] []', "expected nothing after the array's end"),
        ('[{"id": ]', "object 1: expected JSON"),
        ("[" * 100_000, "object 1: expected JSON"),
        ("[3]", "object 1: expected an object with a number as its id"),
        ([{"id": "1"}], "object 1: expected an object with a number as its id"),
        ([{"id": 1, "model_name": 3}], "object 1: model_name: expected a string"),
        ([{"id": 1, "timestamps": 3}], "object 1: timestamps: expected an array"),
        ([{"id": 1, "timestamps": [3]}], "object 1: timestamps: expected objects"),
        ([{"id": 1, "timestamps": [{"name": "X", "ns": "1"}]}], "object 1: timestamps: expected"),
        ([{"id": 1, "model_name": "m"}], "request 1: expected a time HTTP_RECV_START or"),
        ([{**tensor(1, ""), "tensor": 3}], "object 1: tensor: expected an object"),
        ([{**tensor(1, ""), "tensor": {}}], "object 1: tensor: name and data: expected strings"),
        ([tensor(1, "", "FP31")], "object 1: tensor 'X': dtype: expected one of"),
        ([{**tensor(1, ""), "tensor": {"name": "X", "dtype": []}}], "dtype: expected one of"),
        ([tensor(1, "", shape="1,x")], "object 1: tensor 'X': shape: expected sizes"),
        ([tensor(1, "", shape="1,-1")], "object 1: tensor 'X': shape: expected sizes"),
        ([tensor(1, "a,b")], "object 1: tensor 'X': data: expected numbers"),
        ([tensor(1, "1,2,3")], "object 1: tensor 'X': data: expected 2 elements, found 3"),
        ([tensor(1, "1,256", "UINT8")], "object 1: tensor 'X': data: element 1: 256 is no UINT8"),
    ],
)
def test_malformed_files(document: Any, text: str) -> None:
    with pytest.raises(InputError, match=text) as caught:
        read(document if isinstance(document, str) else json.dumps(document))
    assert str(caught.value).startswith("t.json: ")


def test_what_is_kept_is_bounded() -> None:
    objects = [{"id": number, "model_name": "m"} for number in range(10)]
    with pytest.raises(InputError, match="object 6: the file has more than 5 requests"):
        read(json.dumps(objects), TraceLimits(requests=5))
    tensors = [tensor(1, f"{number},0") for number in range(3)]
    with pytest.raises(InputError, match="object 3: different inputs take more than 16 bytes"):
        read(json.dumps(tensors), TraceLimits(distinct_bytes=16))
    text = '[{"id": 1, "x": "' + "x" * 1_000_000 + '"}]'
    file = io.StringIO(text)
    with pytest.raises(InputError, match="object 1: more than 1000 characters"):
        [*read_array("t.json", file, TraceLimits(object_chars=1000))]
    assert file.tell() < 200_000


@given(st.integers(0, 2000), st.text(max_size=3), st.integers(0, 40))
def test_damaged_file_is_read_or_refused(position: int, insertion: str, removed: int) -> None:
    text = json.dumps(TRACE)
    position %= len(text)
    refusal = ""
    try:
        read(text[:position] + insertion + text[position + removed :])
    except InputError as error:
        refusal = str(error)
    assert not refusal or refusal.startswith("t.json: ")
