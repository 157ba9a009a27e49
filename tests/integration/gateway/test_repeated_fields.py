"""Every repeated field of a client's request has a bound, with an error."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import Descriptor

from nereid.pb import kserve_pb2
from tests.support.gateway.gateway_http import INFER, INPUT, ask
from tests.support.gateway.gateway_site import gateway_site

SERVICE = "inference.GRPCInferenceService"
COUNT = 1025
MANY = {f"k{number}": number for number in range(COUNT)}


def _infer(change: Callable[[Any], object]) -> tuple[str, bytes]:
    request = kserve_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(4)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
    request.outputs.add(name="OUTPUT0")
    change(request)
    return "ModelInfer", request.SerializeToString()


def _fill(parameters: Any, field: str) -> None:
    for key, value in MANY.items():
        setattr(parameters[key], field, value)


def _typed(field: str) -> tuple[str, bytes]:
    def change(request: Any) -> None:
        request.ClearField("raw_input_contents")
        value: Any = b"x" if field == "bytes_contents" else 1
        getattr(request.inputs[0].contents, field).extend([value] * COUNT)
        datatype = field.removesuffix("_contents").upper()
        request.inputs[0].datatype = {"INT": "INT32", "UINT": "UINT32"}.get(datatype, datatype)

    return _infer(change)


def _raws(request: Any) -> None:
    request.raw_input_contents.extend([b""] * COUNT)


def _settings(kind: type[Any], set_value: Callable[[Any], object]) -> bytes:
    request = kind()
    for number in range(5000):
        set_value(request.settings[f"setting_{number}"])
    message: bytes = request.SerializeToString()
    return message


def _values() -> bytes:
    request = kserve_pb2.TraceSettingRequest()
    request.settings["trace_level"].value.extend(["TIMESTAMPS"] * 6000)
    return request.SerializeToString()


def _repository(kind: type[Any], text: str) -> bytes:
    request = kind(model_name="echo")
    for key in MANY:
        request.parameters[f"file:{key}"].string_param = text
    message: bytes = request.SerializeToString()
    return message


_SMALL = "control call may have"
# By the name of the field: a call that has too many, and its error.
GRPC: dict[str, tuple[tuple[str, bytes], str]] = {
    "ModelInferRequest.inputs": (
        _infer(lambda it: [it.inputs.add(name="i") for _ in range(COUNT)]),
        "more than 1024 inputs",
    ),
    "ModelInferRequest.outputs": (
        _infer(lambda it: [it.outputs.add(name="o") for _ in range(COUNT)]),
        "more than 1024 outputs",
    ),
    "ModelInferRequest.parameters": (
        _infer(lambda it: _fill(it.parameters, "int64_param")),
        "more than 1024 parameters",
    ),
    "ModelInferRequest.raw_input_contents": (_infer(_raws), "more than 1024 raw contents"),
    "ModelInferRequest.InferInputTensor.shape": (
        _infer(lambda it: it.inputs[0].shape.extend([1] * COUNT)),
        "dimensions, more than 1024",
    ),
    "ModelInferRequest.InferInputTensor.parameters": (
        _infer(lambda it: _fill(it.inputs[0].parameters, "int64_param")),
        "more than 1024 parameters of a tensor",
    ),
    "ModelInferRequest.InferRequestedOutputTensor.parameters": (
        _infer(lambda it: _fill(it.outputs[0].parameters, "int64_param")),
        "more than 1024 parameters of a tensor",
    ),
    **{
        # Their tensor's shape and the limit of a message.
        f"InferTensorContents.{field.name}": (_typed(field.name), "is larger than 1025 bytes")
        for field in kserve_pb2.InferTensorContents.DESCRIPTOR.fields
    },
    "RepositoryModelLoadRequest.parameters": (
        (
            "RepositoryModelLoad",
            _repository(kserve_pb2.RepositoryModelLoadRequest, "x" * 64),
        ),
        "more than 1024 parameters",
    ),
    "RepositoryModelUnloadRequest.parameters": (
        (
            "RepositoryModelUnload",
            _repository(kserve_pb2.RepositoryModelUnloadRequest, "x" * 64),
        ),
        _SMALL,
    ),
    "TraceSettingRequest.settings": (
        (
            "TraceSetting",
            _settings(kserve_pb2.TraceSettingRequest, lambda each: each.value.append("1")),
        ),
        _SMALL,
    ),
    "TraceSettingRequest.SettingValue.value": (("TraceSetting", _values()), _SMALL),
    "LogSettingsRequest.settings": (
        (
            "LogSettings",
            _settings(
                kserve_pb2.LogSettingsRequest, lambda each: setattr(each, "bool_param", True)
            ),
        ),
        _SMALL,
    ),
}


def _repeated(kind: Descriptor, seen: set[str]) -> Iterator[str]:
    """Yield the names of the repeated fields of a message and of those in it."""
    if kind.full_name in seen:
        return
    seen.add(kind.full_name)
    for field in kind.fields:
        if field.is_repeated:
            yield field.full_name.removeprefix("inference.")
        if field.message_type is not None:
            yield from _repeated(field.message_type, seen)


def test_each_repeated_field_has_a_row() -> None:
    service = kserve_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    seen: set[str] = set()
    fields = {name for method in service.methods for name in _repeated(method.input_type, seen)}
    assert fields == set(GRPC)


@pytest.mark.parametrize("field", GRPC)
async def test_each_field_of_grpc_has_a_bound(field: str) -> None:
    (method, message), text = GRPC[field]
    limits = {"grpc_max_input_size": COUNT} if "Contents" in field else {}
    async with gateway_site(**limits) as site, grpc.aio.insecure_channel(site.grpc) as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(message, timeout=10)
        assert raised.value.code().name in {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
        assert text in (raised.value.details() or "")
        # Only the error travels.
        assert all(item.error_status for item in site.scheduler.received)


def _body(**changes: Any) -> bytes:
    document = {"inputs": [{**INPUT, "data": [1, 2]}], "outputs": [{"name": "OUTPUT0"}]}
    return json.dumps(document | changes).encode()


_FILES = {f"file:{number}": base64.b64encode(b"x").decode() for number in range(COUNT)}
HTTP: dict[str, tuple[str, bytes, str]] = {
    "inputs": (INFER, _body(inputs=[{**INPUT, "data": [1, 2]}] * COUNT), "1024 inputs"),
    "outputs": (INFER, _body(outputs=[{"name": "o"}] * COUNT), "1024 outputs"),
    "parameters": (INFER, _body(parameters=MANY), "1024 parameters"),
    "parameters of an input": (
        INFER,
        _body(inputs=[{**INPUT, "data": [1, 2], "parameters": MANY}]),
        "1024 parameters of a tensor",
    ),
    "parameters of an output": (
        INFER,
        _body(outputs=[{"name": "OUTPUT0", "parameters": MANY}]),
        "1024 parameters of a tensor",
    ),
    "shape": (
        INFER,
        _body(inputs=[{**INPUT, "shape": [1] * COUNT, "data": [1]}]),
        "dimensions, more than 1024",
    ),
    "data": (INFER, _body(inputs=[{**INPUT, "data": [1] * COUNT}]), "Shape does not match"),
    "members to generate": (
        INFER.replace("/infer", "/generate"),
        json.dumps({"INPUT0": [1], **MANY}).encode(),
        "1024 parameters",
    ),
    "parameters of a load": (
        "/v2/repository/models/echo/load",
        json.dumps({"parameters": _FILES}).encode(),
        "1024 parameters",
    ),
}


@pytest.mark.parametrize("field", HTTP)
async def test_each_field_of_http_has_a_bound(field: str) -> None:
    target, body, text = HTTP[field]
    async with gateway_site() as site:
        response = await ask(site, "POST", target, body)
        # 500 as on Triton.
        assert response.status == (500 if field == "data" else 400), response
        assert text in response.body.decode()
        assert all(item.error_status for item in site.scheduler.received)


async def test_forwarded_headers_count_as_parameters() -> None:
    headers = {f"x-{number}": "1" for number in range(COUNT)}
    async with gateway_site(http_header_forward_pattern="^x-") as site:
        response = await ask(site, "POST", INFER, _body(), **headers)
        assert response.status == 400, response
        assert b"more than 1024 parameters, with its forwarded headers" in response.body
        del headers["x-0"]
        response = await ask(site, "POST", INFER, _body(outputs=[]), **headers)
        assert response.status == 200, response
