"""Requests and responses of both protocols as tensors, and copies with their tensors inline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from nereid.comparison.responses import Failure, Response, Tensor
from nereid.core.tensors.datatypes import byte_size, element_count
from nereid.pb import kserve_pb2
from nereid.rpc.grpc.status import Status
from nereid_adopt.calls.requests import decoded, parameters_of
from nereid_perf.inputs.expected import grpc_tensors, http_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid.comparison.responses import Tensors
    from nereid_adopt.proxy.recorder import GrpcReply, HttpReply

_OK: Final = 200
_REGION_PARAMETERS: Final = (
    "shared_memory_region",
    "shared_memory_byte_size",
    "shared_memory_offset",
)
# Fields of a response whose values are the server's own, not the model's.
_TENSOR_PARAMETERS: Final = frozenset({*_REGION_PARAMETERS, "binary_data_size"})


def http_response(reply: HttpReply, outputs: Mapping[str, bytes]) -> Response:
    """Return an HTTP response as tensors; raise ValueError if it is no response of the protocol.

    outputs: contents of outputs in shared memory.
    """
    body = decoded(b"".join(reply.body), reply.encoding)
    if body is None:
        raise ValueError("the content coding is unknown or damaged")
    if reply.status != _OK:
        return Response(failure=Failure(str(reply.status), _error_of(body)))
    document = json.loads(body[: reply.json_bytes or len(body)])
    if "outputs" not in document:
        # A response of the generate extension: each member is a value.
        return Response(fields={name: json.dumps(value) for name, value in document.items()})
    tensors = http_tensors(document["outputs"], body, reply.json_bytes)
    for output in document["outputs"]:
        if output["name"] in outputs:
            tensors[output["name"]] = _tensor_in_region(
                output["datatype"], output["shape"], outputs[output["name"]]
            )
    fields = {
        name: str(document[name])
        for name in ("id", "model_name", "model_version")
        if document.get(name)
    }
    return Response(tensors, fields=fields | _parameter_fields(document.get("parameters") or {}))


def grpc_response(reply: GrpcReply, outputs: Mapping[str, bytes]) -> Response:
    """Return a gRPC response as tensors; raise ValueError or DecodeError if it is damaged."""
    if reply.message is None:
        number = int(reply.status) if reply.status.isdigit() else -1
        known = number in Status._value2member_map_
        return Response(failure=Failure(Status(number).name if known else reply.status, reply.text))
    return infer_response(
        kserve_pb2.ModelInferResponse.FromString(b"".join(reply.message)), outputs
    )


def stream_response(message: bytes) -> tuple[str, Response]:
    """Return the id and the tensors of a response of a stream."""
    found = kserve_pb2.ModelStreamInferResponse.FromString(message)
    request_id = found.infer_response.id
    if found.error_message:
        return request_id, Response(failure=Failure("error", found.error_message))
    return request_id, infer_response(found.infer_response, {})


def infer_response(
    message: kserve_pb2.ModelInferResponse, outputs: Mapping[str, bytes]
) -> Response:
    """Return a gRPC response as tensors."""
    tensors = grpc_tensors(message.outputs, message.raw_output_contents)
    for output in message.outputs:
        if output.name in outputs:
            tensors[output.name] = _tensor_in_region(
                output.datatype, output.shape, outputs[output.name]
            )
    fields = {
        name: getattr(message, name)
        for name in ("id", "model_name", "model_version")
        if getattr(message, name)
    }
    return Response(tensors, fields=fields | _parameter_fields(parameters_of(message.parameters)))


def http_inputs(body: bytes, json_bytes: int) -> tuple[str, Tensors]:
    """Return the id and the inputs of an HTTP request; none of one that is damaged."""
    try:
        document = json.loads(body[: json_bytes or len(body)])
        if "inputs" not in document:
            return "", {}
        inputs = http_tensors(document["inputs"], body, json_bytes)
        return str(document.get("id", "")), inputs
    except (ValueError, LookupError, TypeError, AttributeError):
        return "", {}


def grpc_inputs(message: bytes) -> tuple[str, Tensors]:
    """Return the id and the inputs of a gRPC request; none of one that is damaged."""
    try:
        request = kserve_pb2.ModelInferRequest.FromString(message)
        return request.id, grpc_tensors(request.inputs, request.raw_input_contents)
    except (ValueError, LookupError, DecodeError):
        return "", {}


def inline_grpc(message: bytes, inputs: Mapping[str, bytes]) -> bytes:
    """Return a request with the contents of its shared memory as raw contents."""
    request = kserve_pb2.ModelInferRequest.FromString(message)
    raw = iter(list(request.raw_input_contents))
    del request.raw_input_contents[:]
    for tensor in request.inputs:
        if tensor.name in inputs:
            request.raw_input_contents.append(inputs[tensor.name])
            for name in _REGION_PARAMETERS:
                tensor.parameters.pop(name, None)
        else:
            request.raw_input_contents.append(next(raw, b""))
    for output in request.outputs:
        for name in _REGION_PARAMETERS:
            output.parameters.pop(name, None)
    return request.SerializeToString()


def inline_http(body: bytes, json_bytes: int, inputs: Mapping[str, bytes]) -> tuple[bytes, int]:
    """Return a request with the contents of its shared memory, and the length of its JSON."""
    document = json.loads(body[: json_bytes or len(body)])
    position = json_bytes or len(body)
    contents: list[bytes] = []
    for tensor in document.get("inputs", ()):
        parameters: dict[str, Any] = tensor.get("parameters") or {}
        tensor["parameters"] = parameters
        size = parameters.get("binary_data_size")
        if tensor["name"] in inputs:
            contents.append(inputs[tensor["name"]])
            for name in _REGION_PARAMETERS:
                parameters.pop(name, None)
            parameters["binary_data_size"] = len(contents[-1])
        elif size is not None:
            contents.append(body[position : position + size])
            position += size
    for output in document.get("outputs") or ():
        parameters = output.get("parameters") or {}
        output["parameters"] = parameters
        if "shared_memory_region" in parameters:
            parameters["binary_data"] = True
            for name in _REGION_PARAMETERS:
                parameters.pop(name, None)
    text = json.dumps(document).encode()
    return b"".join((text, *contents)), len(text)


def _tensor_in_region(datatype: str, shape: Sequence[int], content: bytes) -> Tensor:
    """Return a tensor at the start of a range that may be longer."""
    size = byte_size(datatype, shape)
    if size is None:
        size = 0
        for _ in range(element_count(shape)):
            size += 4 + int.from_bytes(content[size : size + 4], "little")
    return Tensor(datatype, tuple(shape), content[:size])


def _parameter_fields(parameters: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"parameter {name}": str(value)
        for name, value in parameters.items()
        if name not in _TENSOR_PARAMETERS
    }


def _error_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        return body[:1000].decode("utf-8", "replace")
