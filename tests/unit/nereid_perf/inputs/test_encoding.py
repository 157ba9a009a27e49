"""What the bytes of requests decode to."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from nereid.core.tensors.byte_elements import join_bytes
from nereid_perf.inputs.encoding import GrpcEncoder, HttpEncoder, make_encoder
from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.regions import RegionRange
from nereid_perf.inputs.tensors import Tensor
from tests.support.perf_plans import model, plan

X = Tensor("X", "FP32", (1, 2), np.array([1.5, 2], "<f4").tobytes())
S = Tensor("S", "BYTES", (1, 2), join_bytes(["é", 'a"b']))
PARAMETERS = (("flag", True), ("count", -3), ("share", 0.5), ("name", "n"))


def grpc_encoder(outputs: dict[str, RegionRange | None] | None = None, **more: Any) -> GrpcEncoder:
    encoder = make_encoder(plan(), model(**more), outputs or {})
    assert isinstance(encoder, GrpcEncoder)
    return encoder


def http_encoder(
    outputs: dict[str, RegionRange | None] | None = None,
    has_json: tuple[bool, bool] = (False, False),
    **more: Any,
) -> HttpEncoder:
    made = plan(protocol="http", has_json_inputs=has_json[0], has_json_outputs=has_json[1])
    encoder = make_encoder(made, model(**more), outputs or {})
    assert isinstance(encoder, HttpEncoder)
    return encoder


def parsed(message: bytes) -> Any:
    return service_pb2.ModelInferRequest.FromString(message)


def test_grpc_requests_are_what_protobuf_writes() -> None:
    encoder = grpc_encoder(
        {"Y": None}, version="2", parameters=PARAMETERS, priority=5, timeout_us=100
    )
    part = encoder.sequence_part(300, start=True, end=False)
    message, json_bytes = encoder.template([X, S]).encode(b"id-1", part)
    assert json_bytes == 0
    request = service_pb2.ModelInferRequest(model_name="m", model_version="2", id="id-1")
    for tensor in (X, S):
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.raw)
    request.outputs.add(name="Y")
    parameters = request.parameters
    parameters["sequence_id"].int64_param = 300
    parameters["sequence_start"].bool_param = True
    parameters["sequence_end"].bool_param = False
    parameters["priority"].uint64_param = 5
    parameters["timeout"].int64_param = 100
    parameters["flag"].bool_param = True
    parameters["count"].int64_param = -3
    parameters["share"].double_param = 0.5
    parameters["name"].string_param = "n"
    assert parsed(message) == request
    # No longer than what one encoder writes in one go: nothing is there twice.
    assert len(message) == request.ByteSize()


def test_grpc_request_without_an_id_and_a_sequence() -> None:
    message, _ = grpc_encoder().template([X]).encode()
    request = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[X.raw])
    request.inputs.add(name="X", datatype="FP32", shape=[1, 2])
    assert message == request.SerializeToString()


@pytest.mark.parametrize("identity", [1, 127, 128, (1 << 63) - 1, "a", "é" * 100])
@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("end", [False, True])
def test_place_in_a_sequence(identity: int | str, start: bool, end: bool) -> None:
    encoder = grpc_encoder()
    part = encoder.sequence_part(identity, start=start, end=end)
    found = parsed(encoder.template([X]).encode(b"x", part)[0]).parameters
    choice = "string_param" if isinstance(identity, str) else "int64_param"
    assert found["sequence_id"].WhichOneof("parameter_choice") == choice
    assert getattr(found["sequence_id"], choice) == identity
    assert (found["sequence_start"].bool_param, found["sequence_end"].bool_param) == (start, end)
    over_http = http_encoder()
    part = over_http.sequence_part(identity, start=start, end=end)
    message, size = over_http.template([X]).encode(b"x", part)
    assert json.loads(message[:size])["parameters"] == {
        "sequence_id": identity,
        "sequence_start": start,
        "sequence_end": end,
        "binary_data_output": True,
    }


def test_http_request_with_binary_tensors() -> None:
    encoder = http_encoder({"Y": None}, parameters=PARAMETERS, priority=5, timeout_us=100)
    message, size = encoder.template([X, S], parameters=[("more", 1)]).encode(b"id-1")
    assert message[size:] == X.raw + S.raw
    assert json.loads(message[:size]) == {
        "id": "id-1",
        "parameters": {**dict(PARAMETERS), "priority": 5, "timeout": 100, "more": 1},
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": [1, 2],
                "parameters": {"binary_data_size": len(tensor.raw)},
            }
            for tensor in (X, S)
        ],
        "outputs": [{"name": "Y", "parameters": {"binary_data": True}}],
    }


def test_http_request_of_json_alone() -> None:
    flag = Tensor("B", "BOOL", (2,), b"\x01\x00")
    encoder = http_encoder(has_json=(True, True))
    message, size = encoder.template([X, S, flag]).encode()
    assert size == 0
    document = json.loads(message)
    assert [each["data"] for each in document["inputs"]] == [[1.5, 2], ["é", 'a"b'], [True, False]]
    assert document.keys() == {"inputs"}
    # Without a flag for outputs, or a name, JSON is what servers send.
    named, _ = http_encoder({"Y": None}, has_json=(True, True)).template([X]).encode()
    assert json.loads(named)["outputs"] == [{"name": "Y"}]


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (Tensor("H", "FP16", (1,), b"\0\0"), "input 'H': JSON has no FP16"),
        (Tensor("H", "BF16", (1,), b"\0\0"), "input 'H': JSON has no BF16"),
        (Tensor("S", "BYTES", (1,), join_bytes([b"\xff"])), "input 'S': an element is no UTF-8"),
        (Tensor("N", "FP64", (1,), np.array([np.nan]).tobytes()), "JSON has no NaN"),
    ],
)
def test_what_json_cannot_hold(tensor: Tensor, text: str) -> None:
    with pytest.raises(InputError, match=f"{text}.*--input-tensor-format binary"):
        http_encoder(has_json=(True, False)).template([tensor])


def test_tensors_in_shared_memory() -> None:
    places = [RegionRange("in", 0, 8), RegionRange("in", 64, 12)]
    outputs: dict[str, RegionRange | None] = {"Y": RegionRange("out", 128, 8)}
    message, _ = grpc_encoder(outputs).template([X, S], places).encode()
    request = parsed(message)
    assert not request.raw_input_contents
    assert [
        {key: each.string_param or each.int64_param for key, each in tensor.parameters.items()}
        for tensor in (*request.inputs, *request.outputs)
    ] == [each.parameters() for each in (*places, outputs["Y"]) if each]
    message, size = http_encoder(outputs).template([X, S], places).encode()
    assert size == 0
    document = json.loads(message)
    assert document["inputs"][1]["parameters"] == {
        "shared_memory_region": "in",
        "shared_memory_offset": 64,
        "shared_memory_byte_size": 12,
    }
    assert "data" not in document["inputs"][0]
    assert document["outputs"] == [{"name": "Y", "parameters": outputs["Y"].parameters()}]  # type: ignore[union-attr]


def test_empty_tensor() -> None:
    empty = Tensor("E", "FP32", (0, 3), b"")
    message, size = http_encoder().template([empty]).encode()
    assert json.loads(message)["inputs"][0]["shape"] == [0, 3]
    assert size == 0
    assert parsed(grpc_encoder().template([empty]).encode()[0]).raw_input_contents == [b""]
