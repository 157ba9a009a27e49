"""Encodes requests: shared parts once, as two halves; the id and the sequence go between them."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from nereid.core.tensors.byte_elements import split_bytes
from nereid.core.tensors.datatypes import BYTES
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid.core.wire.varint import encode_varint
from nereid.pb import kserve_pb2
from nereid_perf.inputs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nereid_perf.inputs.plan import InputPlan, ModelPlan, Parameter
    from nereid_perf.inputs.regions import RegionRange
    from nereid_perf.inputs.tensors import Tensor

_NO_JSON: Final = frozenset({"FP16", "BF16"})
_FLAGS: Final = tuple((start, end) for start in (False, True) for end in (False, True))


class RequestTemplate(Protocol):
    """An encoded request without the parts that differ each time it is sent."""

    def encode(self, request_id: bytes = b"", sequence: bytes = b"") -> tuple[bytes, int]:
        """Return the message and its JSON's length, 0 over gRPC or without binary tensors.

        request_id: ASCII without quotation marks. sequence: from the encoder's sequence_part().
        """
        ...


class Encoder(Protocol):
    """Encoder of the requests of one model."""

    def template(
        self,
        inputs: Iterable[Tensor],
        ranges: Sequence[RegionRange] = (),
        parameters: Iterable[tuple[str, Parameter]] = (),
    ) -> RequestTemplate:
        """Return a template with these inputs, which are in shared memory if there are `ranges`."""
        ...

    def sequence_part(self, identity: int | str, *, start: bool, end: bool) -> bytes:
        """Return the bytes that tell the server the request's place in its sequence."""
        ...


def make_encoder(
    plan: InputPlan, model: ModelPlan, outputs: Mapping[str, RegionRange | None]
) -> Encoder:
    """Return an encoder for a model's requests.

    outputs: each requested output's place in shared memory, or `None`; an empty map means all
    outputs.
    """
    if plan.protocol == "grpc":
        return GrpcEncoder(model, outputs)
    return HttpEncoder(plan, model, outputs)


def _parameters_of(model: ModelPlan) -> dict[str, Parameter]:
    parameters = dict(model.parameters)
    if model.priority:
        parameters["priority"] = model.priority
    if model.timeout_us:
        parameters["timeout"] = model.timeout_us
    return parameters


_ID_TAG: Final = b"\x1a"
_PARAMETERS_TAG: Final = b"\x22"


class _Halves:
    """Template of a gRPC request: the bytes before and after the id and the sequence part."""

    __slots__ = ("_prefix", "_suffix")

    def __init__(self, prefix: bytes, suffix: bytes) -> None:
        self._prefix = prefix
        self._suffix = suffix

    def encode(self, request_id: bytes = b"", sequence: bytes = b"") -> tuple[bytes, int]:
        """Return the message with an id and a place in a sequence."""
        if request_id:
            size = encode_varint(len(request_id))
            parts = (self._prefix, _ID_TAG, size, request_id, sequence, self._suffix)
            return b"".join(parts), 0
        return b"".join((self._prefix, sequence, self._suffix)), 0


class GrpcEncoder:
    """Encoder of ModelInferRequest, with tensors as raw contents."""

    def __init__(self, model: ModelPlan, outputs: Mapping[str, RegionRange | None]) -> None:
        self._prefix = kserve_pb2.ModelInferRequest(
            model_name=model.name, model_version=model.version
        ).SerializeToString()
        self._shared = kserve_pb2.ModelInferRequest()
        _add_parameters(self._shared.parameters, _parameters_of(model))
        for name, place in outputs.items():
            output = self._shared.outputs.add(name=name)
            if place is not None:
                _add_parameters(output.parameters, place.parameters())

    def template(
        self,
        inputs: Iterable[Tensor],
        ranges: Sequence[RegionRange] = (),
        parameters: Iterable[tuple[str, Parameter]] = (),
    ) -> RequestTemplate:
        """Return the template of requests with these inputs."""
        message = kserve_pb2.ModelInferRequest()
        message.CopyFrom(self._shared)
        _add_parameters(message.parameters, dict(parameters))
        for index, tensor in enumerate(inputs):
            written = message.inputs.add(
                name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
            )
            if ranges:
                _add_parameters(written.parameters, ranges[index].parameters())
            else:
                message.raw_input_contents.append(tensor.raw)
        try:
            return _Halves(self._prefix, message.SerializeToString())
        except Exception as error:
            raise InputError(f"a request is larger than a gRPC message may be: {error}") from error

    def sequence_part(self, identity: int | str, *, start: bool, end: bool) -> bytes:
        """Return the parameters that tell a request's place in its sequence."""
        flags = _GRPC_FLAGS[start, end]
        if isinstance(identity, str):
            return _map_entry("sequence_id", _parameter(identity)) + flags
        # Only the sequence id (int64_param) differs between sequences, so it is encoded by hand.
        number = b"\x10" + encode_varint(identity)
        value = b"\x12" + bytes((len(number),)) + number
        return _ID_ENTRY + bytes((len(_ID_KEY) + len(value),)) + _ID_KEY + value + flags


def _parameter(value: Parameter) -> kserve_pb2.InferParameter:
    match value:
        case bool():
            return kserve_pb2.InferParameter(bool_param=value)
        case int() if value >= 1 << 63:
            return kserve_pb2.InferParameter(uint64_param=value)
        case int():
            return kserve_pb2.InferParameter(int64_param=value)
        case float():
            return kserve_pb2.InferParameter(double_param=value)
    return kserve_pb2.InferParameter(string_param=value)


def _add_parameters(written: Any, parameters: Mapping[str, Parameter]) -> None:
    for name, value in parameters.items():
        if name == "priority" and isinstance(value, int):
            # Triton's clients send uint64_param.
            written[name].uint64_param = value
        else:
            written[name].CopyFrom(_parameter(value))


def _map_entry(key: str, value: kserve_pb2.InferParameter) -> bytes:
    message = kserve_pb2.ModelInferRequest()
    message.parameters[key].CopyFrom(value)
    return message.SerializeToString()


_ID_KEY: Final = b"\x0a\x0bsequence_id"
_ID_ENTRY: Final = _PARAMETERS_TAG
_GRPC_FLAGS: Final = {
    (start, end): _map_entry("sequence_start", _parameter(start))
    + _map_entry("sequence_end", _parameter(end))
    for start, end in _FLAGS
}


class _Document:
    """Template of an HTTP request: tensors, and JSON without id and sequence."""

    __slots__ = ("_binary_bytes", "_parameters", "_rest")

    def __init__(self, parameters: bytes, rest: bytes, binary: bytes) -> None:
        self._parameters = parameters
        self._rest = rest + binary
        self._binary_bytes = len(binary)

    def encode(self, request_id: bytes = b"", sequence: bytes = b"") -> tuple[bytes, int]:
        """Return the body with an id and a place in a sequence, and the length of its JSON."""
        head = b'{"id":"%s",' % request_id if request_id else b"{"
        if sequence or self._parameters:
            both = b"," if sequence and self._parameters else b""
            head = b'%s"parameters":{%s%s%s},' % (head, sequence, both, self._parameters)
        message = head + self._rest
        return message, len(message) - self._binary_bytes if self._binary_bytes else 0


class HttpEncoder:
    """Encoder of HTTP bodies: tensors are in the JSON, or behind it (Triton's binary extension)."""

    def __init__(
        self, plan: InputPlan, model: ModelPlan, outputs: Mapping[str, RegionRange | None]
    ) -> None:
        self._is_json = plan.has_json_inputs
        self._parameters = _parameters_of(model)
        self._outputs: list[dict[str, Any]] = []
        for name, place in outputs.items():
            output: dict[str, Any] = {"name": name}
            if place is not None:
                output["parameters"] = place.parameters()
            elif not plan.has_json_outputs:
                output["parameters"] = {"binary_data": True}
            self._outputs.append(output)
        if not outputs and not plan.has_json_outputs:
            self._parameters["binary_data_output"] = True

    def template(
        self,
        inputs: Iterable[Tensor],
        ranges: Sequence[RegionRange] = (),
        parameters: Iterable[tuple[str, Parameter]] = (),
    ) -> RequestTemplate:
        """Return the template of requests with these inputs."""
        written: list[dict[str, Any]] = []
        binary: list[bytes] = []
        for index, tensor in enumerate(inputs):
            described: dict[str, Any] = {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": tensor.shape,
            }
            if ranges:
                described["parameters"] = ranges[index].parameters()
            elif self._is_json:
                described["data"] = _json_elements(tensor)
            else:
                described["parameters"] = {"binary_data_size": len(tensor.raw)}
                binary.append(tensor.raw)
            written.append(described)
        document: dict[str, Any] = {"inputs": written}
        if self._outputs:
            document["outputs"] = self._outputs
        members = _json({**self._parameters, **dict(parameters)})
        return _Document(members[1:-1], _json(document)[1:], b"".join(binary))

    def sequence_part(self, identity: int | str, *, start: bool, end: bool) -> bytes:
        """Return the parameters that tell a request's place in its sequence."""
        if isinstance(identity, int):
            return b'"sequence_id":%d%s' % (identity, _HTTP_FLAGS[start, end])
        return b'"sequence_id":%s%s' % (_json_text(identity), _HTTP_FLAGS[start, end])


_HTTP_FLAGS: Final = {
    (start, end): b',"sequence_start":%s,"sequence_end":%s'
    % (b"true" if start else b"false", b"true" if end else b"false")
    for start, end in _FLAGS
}


@lru_cache(256)
def _json_text(text: str) -> bytes:
    return json.dumps(text).encode()


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _json_elements(tensor: Tensor) -> list[Any]:
    flag = "use --input-tensor-format binary"
    if tensor.datatype in _NO_JSON:
        raise InputError(f"input '{tensor.name}': JSON has no {tensor.datatype}: {flag}")
    if tensor.datatype == BYTES:
        try:
            return [element.decode() for element in split_bytes(tensor.raw)]
        except UnicodeDecodeError:
            raise InputError(
                f"input '{tensor.name}': an element is no UTF-8, as JSON needs: {flag}"
            ) from None
    array = np.frombuffer(tensor.raw, NUMPY_TYPE[tensor.datatype])
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"input '{tensor.name}': JSON has no NaN and no infinity: {flag}")
    elements: list[Any] = array.tolist()
    return elements
