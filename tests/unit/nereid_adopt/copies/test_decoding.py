import gzip
import json
from typing import Any

import numpy as np
import pytest

from nereid.comparison.responses import Failure, Tensor
from nereid.core.tensors.byte_elements import join_bytes
from nereid.pb import kserve_pb2
from nereid_adopt.copies.decoding import (
    grpc_inputs,
    grpc_response,
    http_inputs,
    http_response,
    inline_grpc,
    inline_http,
    stream_response,
)
from nereid_adopt.proxy.recorder import GrpcReply, HttpReply

_FOUR = np.arange(4, dtype="<f4").tobytes()
_REGION = {"shared_memory_region": "r", "shared_memory_byte_size": 16}


def grpc_message(**fields: Any) -> kserve_pb2.ModelInferResponse:
    message = kserve_pb2.ModelInferResponse(model_name="m", model_version="1", **fields)
    message.outputs.add(name="y", datatype="FP32", shape=[4])
    return message


def test_http_responses_become_tensors() -> None:
    document = {
        "model_name": "m",
        "id": "7",
        "parameters": {"p": True},
        "outputs": [
            {"name": "a", "datatype": "INT32", "shape": [2], "data": [1, 2]},
            {
                "name": "b",
                "datatype": "FP32",
                "shape": [4],
                "parameters": {"binary_data_size": 16},
            },
        ],
    }
    text = json.dumps(document).encode()
    response = http_response(HttpReply(200, (text, _FOUR), len(text)), {})
    assert response.outputs["a"] == Tensor("INT32", (2,), np.array([1, 2], "<i4").tobytes())
    assert response.outputs["b"] == Tensor("FP32", (4,), _FOUR)
    assert response.fields == {"id": "7", "model_name": "m", "parameter p": "True"}
    whole = gzip.compress(text + _FOUR)
    assert http_response(HttpReply(200, (whole,), len(text), "gzip"), {}) == response


def test_members_of_other_servers_are_null() -> None:
    """KServe's own server sends null instead of no member."""
    output = {"name": "a", "datatype": "INT32", "shape": [2], "parameters": None, "data": [1, 2]}
    document = {"model_name": "m", "id": None, "model_version": None, "parameters": None}
    text = json.dumps(document | {"outputs": [output]}).encode()
    response = http_response(HttpReply(200, (text,)), {})
    assert response.outputs["a"] == Tensor("INT32", (2,), np.array([1, 2], "<i4").tobytes())
    assert response.fields == {"model_name": "m"}


def test_http_errors_and_generated_texts() -> None:
    found = http_response(HttpReply(404, (b'{"error":"unknown"}',)), {})
    assert found.failure == Failure("404", "unknown")
    assert http_response(HttpReply(500, (b"oops",)), {}).failure == Failure("500", "oops")
    assert http_response(HttpReply(200, (b'{"text":"x"}',)), {}).fields == {"text": '"x"'}
    with pytest.raises(ValueError, match="content coding"):
        http_response(HttpReply(200, (b"x",), 0, "br"), {})


def test_grpc_responses_become_tensors() -> None:
    message = grpc_message()
    message.raw_output_contents.append(_FOUR)
    response = grpc_response(GrpcReply((message.SerializeToString(),)), {})
    assert response.outputs == {"y": Tensor("FP32", (4,), _FOUR)}
    assert response.fields == {"model_name": "m", "model_version": "1"}
    assert grpc_response(GrpcReply(None, "5", "none"), {}).failure == Failure("NOT_FOUND", "none")
    assert grpc_response(GrpcReply(None, "x", ""), {}).failure == Failure("x", "")


def test_outputs_in_regions_end_with_the_tensor() -> None:
    shared = {"y": _FOUR + b"rest"}
    assert grpc_response(GrpcReply((grpc_message().SerializeToString(),)), shared).outputs == {
        "y": Tensor("FP32", (4,), _FOUR)
    }
    texts = join_bytes([b"a", b"bc"])
    document = {"outputs": [{"name": "t", "datatype": "BYTES", "shape": [2]}]}
    body = json.dumps(document).encode()
    response = http_response(HttpReply(200, (body,)), {"t": texts + b"rest"})
    assert response.outputs == {"t": Tensor("BYTES", (2,), texts)}


def test_messages_of_streams() -> None:
    message = kserve_pb2.ModelStreamInferResponse(infer_response=grpc_message(id="1"))
    message.infer_response.raw_output_contents.append(_FOUR)
    request_id, response = stream_response(message.SerializeToString())
    assert (request_id, response.outputs["y"].raw) == ("1", _FOUR)
    failed = kserve_pb2.ModelStreamInferResponse(error_message="no")
    assert stream_response(failed.SerializeToString())[1].failure == Failure("error", "no")


def test_a_copy_over_http_has_its_tensors_inline() -> None:
    document = {
        "inputs": [
            {"name": "s", "datatype": "FP32", "shape": [4], "parameters": dict(_REGION)},
            {"name": "b", "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": 2}},
            {"name": "j", "datatype": "INT32", "shape": [1], "data": [3]},
        ],
        "outputs": [{"name": "y", "parameters": dict(_REGION)}, {"name": "z"}],
    }
    text = json.dumps(document).encode()
    body, json_bytes = inline_http(text + b"\1\2", len(text), {"s": _FOUR})
    assert http_inputs(body, json_bytes)[1] == {
        "s": Tensor("FP32", (4,), _FOUR),
        "b": Tensor("UINT8", (2,), b"\1\2"),
        "j": Tensor("INT32", (1,), b"\3\0\0\0"),
    }
    assert json.loads(body[:json_bytes])["outputs"] == [
        {"name": "y", "parameters": {"binary_data": True}},
        {"name": "z", "parameters": {}},
    ]


def test_a_copy_over_grpc_has_its_tensors_inline() -> None:
    request = kserve_pb2.ModelInferRequest(model_name="m", id="1")
    request.inputs.add(name="b", datatype="UINT8", shape=[2])
    shared = request.inputs.add(name="s", datatype="FP32", shape=[4])
    output = request.outputs.add(name="y")
    for tensor in (shared, output):
        tensor.parameters["shared_memory_region"].string_param = "r"
        tensor.parameters["shared_memory_byte_size"].int64_param = 16
    request.raw_input_contents.append(b"\1\2")
    copied = inline_grpc(request.SerializeToString(), {"s": _FOUR})
    assert grpc_inputs(copied) == (
        "1",
        {"b": Tensor("UINT8", (2,), b"\1\2"), "s": Tensor("FP32", (4,), _FOUR)},
    )
    assert b"shared_memory" not in copied


def test_damaged_requests_have_no_inputs() -> None:
    assert http_inputs(b"[", 0) == http_inputs(b'{"text":1}', 0) == ("", {})
    assert grpc_inputs(b"\xff") == ("", {})
