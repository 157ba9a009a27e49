"""Responses compared with what the user expects of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from nereid.core.tensors.byte_elements import join_bytes
from nereid_perf.inputs.expected import describe_mismatch
from nereid_perf.inputs.tensors import Tensor, raw_of


def expected(datatype: str, *values: Any) -> Tensor:
    return Tensor("Y", datatype, (len(values),), raw_of(values, datatype)[0])


def grpc_response(datatype: str, raw: Any = None, **contents: Any) -> bytes:
    response = service_pb2.ModelInferResponse()
    output = response.outputs.add(name="Y", datatype=datatype, shape=[1])
    if raw is not None:
        response.raw_output_contents.append(raw)
    for name, values in contents.items():
        getattr(output.contents, name).extend(values)
    return bytes(response.SerializeToString())


def grpc(tensor: Tensor, message: bytes) -> str:
    return describe_mismatch("grpc", [tensor], message, 0)


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16"])
def test_floats_may_differ_by_a_little(datatype: str) -> None:
    tensor = expected(datatype, 1.0, 100.0)
    assert grpc(tensor, grpc_response(datatype, tensor.raw)) == ""
    near, _ = raw_of([1.0, 100.0 * (1 + 1e-7)], datatype)
    assert grpc(tensor, grpc_response(datatype, near)) == ""
    far, _ = raw_of([1.0, 110.0], datatype)
    assert grpc(tensor, grpc_response(datatype, far)) == (
        "output 'Y': element 1 is 110.0, expected 100.0"
    )


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-1, 3]),
        ("UINT16", "uint_contents", [1, 3]),
        ("INT64", "int64_contents", [-(1 << 62)]),
        ("UINT64", "uint64_contents", [1 << 63]),
        ("FP32", "fp32_contents", [1.5]),
        ("FP64", "fp64_contents", [1.5]),
    ],
)
def test_typed_contents(datatype: str, field: str, values: list[Any]) -> None:
    tensor = expected(datatype, *values)
    assert grpc(tensor, grpc_response(datatype, **{field: values})) == ""
    assert "elements, expected" in grpc(tensor, grpc_response(datatype, **{field: values[1:]}))


def test_strings() -> None:
    tensor = expected("BYTES", "a", "b")
    assert grpc(tensor, grpc_response("BYTES", bytes_contents=[b"a", b"b"])) == ""
    found = grpc(tensor, grpc_response("BYTES", join_bytes(["a", "c"])))
    assert found == "output 'Y': element 1 is b'c', expected b'b'"


def test_http_responses_in_json_and_binary() -> None:
    tensor = expected("INT32", 1, 2)
    output: dict[str, Any] = {"name": "Y", "datatype": "INT32", "shape": [2]}
    body = json.dumps({"outputs": [{**output, "data": [1, 2]}]}).encode()
    assert describe_mismatch("http", [tensor], body, 0) == ""
    first = {**output, "name": "X", "parameters": {"binary_data_size": 4}}
    second = {**output, "parameters": {"binary_data_size": 8}}
    header = json.dumps({"outputs": [first, second]}).encode()
    body = header + b"1234" + np.array([1, 3], "<i4").tobytes()
    found = describe_mismatch("http", [tensor], body, len(header))
    assert found == "output 'Y': element 1 is 3, expected 2"


def test_outputs_that_are_missing_or_of_another_datatype_and_broken_responses() -> None:
    tensor = expected("INT32", 1)
    assert grpc(tensor, b"") == "output 'Y' is missing"
    assert grpc(tensor, grpc_response("FP32", bytes(4))) == "output 'Y' is FP32, expected INT32"
    assert "not a response" in grpc(tensor, b"\xff")
    assert "not a response" in describe_mismatch("http", [tensor], b"{", 0)
    assert "not a response" in describe_mismatch("http", [tensor], b'{"outputs": [3]}', 0)
    assert describe_mismatch("http", [], b"{", 0) == ""
