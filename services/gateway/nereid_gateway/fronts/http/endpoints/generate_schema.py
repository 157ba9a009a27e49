"""Converts the generate extension's JSON to tensors and parameters, and outputs to JSON.

If a member has the name of an input, its value is that input's data. Any other member is a
parameter. `parameters` holds members of both kinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from nereid.core.errors import Internal, InvalidArgument, NereidError, error_from_code
from nereid.core.tensors.shapes import VARIABLE
from nereid.core.wire.messages import InferResponse
from nereid.pb import kserve_pb2
from nereid_gateway.core import request_head
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_head import HeadInput
from nereid_gateway.core.tensors import string_elements
from nereid_gateway.fronts.http.inference.infer_request import custom_parameter
from nereid_gateway.fronts.http.json import parser, tensor_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nereid.core.wire.messages import Parameter
    from nereid_gateway.fronts.http.inference.infer_response import HeadMembers

    TensorMetadata = kserve_pb2.ModelMetadataResponse.TensorMetadata

NOT_ONE_RESPONSE: Final = (
    "generate expects model to produce exactly 1 response, use generate stream for model that"
    " generates various number of responses"
)
_PARAMETERS: Final = "parameters"


def decode_request(
    body: bytes,
    model: str,
    version: str,
    metadata: kserve_pb2.ModelMetadataResponse,
    max_bytes: int = tensor_data.MAX_COUNT,
) -> ClientRequest:
    """Return the request that a body describes.

    Raises NereidError if the body is not a JSON object or does not fit the model's inputs, or the
    inputs have more than max_bytes.
    """
    document = parser.parse_members(body, _PARAMETERS)
    if not isinstance(document, dict):
        raise Internal("attempt to get members for non-object")
    request_id = parser.as_string(document["id"], "id") if "id" in document else ""
    request_head.check_count("parameters", len(document), model)
    reader = _DocumentReader(metadata, request_id, model, max_bytes)
    for key in _names(document):
        if key == _PARAMETERS:
            reader.read_parameters(document[key])
        else:
            reader.read_member(key, document[key])
    checked = request_head.build(model, version, reader.inputs, ())
    request = ClientRequest(0, checked.head, reader.payloads, request_id)
    for string_input in checked.strings:
        string_elements.check(reader.payloads[string_input.position], string_input, request_id)
    request.parameters = reader.parameters or None
    return request


def decode_job(
    bodies: Sequence[bytes], model: str, version: str, metadata: bytes, max_bytes: int
) -> tuple[ClientRequest, Sequence[Any]]:
    """Return the request in a body, and its payloads. This job runs in a decoder process."""
    described = kserve_pb2.ModelMetadataResponse.FromString(metadata)
    request = decode_request(bodies[0], model, version, described, max_bytes)
    payloads, request.payloads = request.payloads, []
    return request, payloads


def encode_job(
    payloads: Sequence[bytes], head: HeadMembers, request_id: str, max_text_bytes: int
) -> tuple[None, Sequence[bytes]]:
    """Return what encode_response() returns for payloads. This job runs in a decoder process."""
    response = InferResponse(0, b"", list(payloads))
    texts = tensor_data.OutputTexts(max_text_bytes)
    return None, (encode_response(response, head, request_id, texts.from_raw),)


def _names(members: dict[str, Any]) -> Iterable[str]:
    """Return all names, repeated ones too. As on Triton, an input that occurs twice is an error."""
    return members.names if isinstance(members, parser.RepeatedMembers) else members


class _DocumentReader:
    def __init__(
        self,
        metadata: kserve_pb2.ModelMetadataResponse,
        request_id: str,
        model: str,
        max_bytes: int,
    ) -> None:
        self._inputs_by_name: dict[str, TensorMetadata] = {
            tensor.name: tensor for tensor in metadata.inputs
        }
        self._request_id = request_id
        self._model = model
        self._max_bytes = max_bytes
        self._input_bytes = 0
        self.inputs: list[HeadInput] = []
        self.payloads: list[Any] = []
        self.parameters: dict[str, Parameter] = {}

    def read_parameters(self, members: Any) -> None:
        if not isinstance(members, dict):
            raise Internal(
                f"Expected JSON object for keyword: '{_PARAMETERS}': attempt to access JSON"
                " non-object as object"
            )
        request_head.check_count("parameters", len(members), self._model)
        for key in _names(members):
            try:
                self.read_member(key, members[key])
            except NereidError as error:
                message = f"Converting keyword: '{_PARAMETERS}': {error.message}"
                raise error_from_code(error.code, message) from error

    def read_member(self, key: str, value: Any) -> None:
        tensor = self._inputs_by_name.get(key)
        if tensor is not None:
            self._read_input(tensor, value)
        elif key != "id":
            self.parameters[parser.printable(key)] = custom_parameter(key, value)

    def _read_input(self, tensor: TensorMetadata, value: Any) -> None:
        name, datatype = tensor.name, tensor.datatype
        if datatype in tensor_data.BINARY_ONLY:
            tensor_data.refuse_half_precision(name, datatype)
        data = value if type(value) is list else [value]
        shape = _fit_shape(name, tensor.shape, len(data))
        payload = tensor_data.to_raw(data, name, datatype, shape)
        self._count_bytes(name, len(payload))
        if any(known.name == name for known in self.inputs):
            prefix = string_elements.prefix(self._request_id)
            raise InvalidArgument(f"{prefix}input '{name}' already exists in request")
        self.inputs.append(HeadInput(name, datatype, shape))
        self.payloads.append(payload)

    def _count_bytes(self, name: str, size_bytes: int) -> None:
        """Count an input's bytes. Raise InvalidArgument if all inputs together are too large."""
        if self._input_bytes + size_bytes > self._max_bytes:
            raise InvalidArgument(
                f"request size of {self._input_bytes} bytes with input '{name}' of size"
                f" {size_bytes} bytes exceeds the maximum allowed input size of {self._max_bytes}."
                " Use --http-max-input-size to increase the limit."
            )
        self._input_bytes += size_bytes


def _fit_shape(name: str, shape: Any, count: int) -> list[int]:
    """Return the shape of an input with count elements.

    The innermost variable dimension gets the size that fits the count. The others get size 1.
    """
    rest = count
    for size in shape:
        if size == VARIABLE:
            continue
        if not size or rest % size:
            _refuse_shape(name)
        rest //= size
    dims = list(shape)
    for axis in reversed(range(len(dims))):
        if dims[axis] == VARIABLE:
            dims[axis], rest = rest, 1
    if rest != 1:
        _refuse_shape(name)
    return dims


def _refuse_shape(name: str) -> None:
    raise InvalidArgument(f"The schema can not convert input '{name}' to tensor with proper shape")


def encode_response(
    response: InferResponse,
    head: HeadMembers,
    request_id: str,
    from_raw: Callable[..., Any] = tensor_data.from_raw,
) -> bytes:
    """Return the JSON text of a response without error.

    Outputs are flat lists, or scalars if they have one element. Raises InvalidArgument if an output
    has no JSON form.
    """
    members, tensors = head
    document: dict[str, Any] = {}
    for tensor, payload in zip(tensors, response.payloads, strict=True):
        document[tensor["name"]] = from_raw(payload, tensor["datatype"], scalar=True)
    document |= members.get(_PARAMETERS, {})
    document |= {name: members[name] for name in ("model_name", "model_version")}
    if request_id:
        document["id"] = request_id
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
