"""Compares responses with the outputs that the user's data expects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from nereid.comparison.raw_contents import raw_contents
from nereid.comparison.responses import Tensor as Output
from nereid.core.errors import InvalidArgument
from nereid.core.tensors.byte_elements import split_bytes
from nereid.core.tensors.datatypes import BYTES
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid.pb import kserve_pb2
from nereid_perf.inputs.tensors import raw_of, widened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid_perf.inputs.tensors import Tensor

# Relative tolerances: devices and batch sizes round differently.
_RELATIVE: Final = {"FP16": 1e-2, "BF16": 1e-2, "FP32": 1e-4, "FP64": 1e-6}
_ABSOLUTE: Final = 1e-6


def grpc_outputs(message: bytes) -> dict[str, Output]:
    """Return the outputs of a ModelInferResponse. May raise ValueError or DecodeError."""
    response = kserve_pb2.ModelInferResponse.FromString(message)
    return grpc_tensors(response.outputs, response.raw_output_contents)


def grpc_tensors(tensors: Sequence[Any], raw: Sequence[bytes]) -> dict[str, Output]:
    """Return tensors of a gRPC message by name. May raise ValueError."""
    return {
        tensor.name: Output(tensor.datatype, tuple(tensor.shape), content)
        for tensor, content in zip(tensors, raw_contents(tensors, raw), strict=False)
    }


def http_outputs(body: bytes, json_bytes: int = 0) -> dict[str, Output]:
    """Return the outputs of an HTTP response; raise ValueError if it is broken.

    json_bytes: length of the JSON, from the response's header; 0 if the whole body is JSON.
    """
    document = json.loads(body[: json_bytes or len(body)])
    return http_tensors(document.get("outputs", ()), body, json_bytes)


def http_tensors(tensors: Sequence[Any], body: bytes, json_bytes: int) -> dict[str, Output]:
    """Return tensors of an HTTP body by name. May raise LookupError, TypeError, ValueError."""
    position = json_bytes
    found: dict[str, Output] = {}
    for tensor in tensors:
        datatype = tensor["datatype"]
        size = (tensor.get("parameters") or {}).get("binary_data_size")
        if size is None:
            content, _ = raw_of(tensor.get("data") or (), datatype)
        else:
            content = body[position : position + size]
            position += size
        found[tensor["name"]] = Output(datatype, tuple(tensor.get("shape", ())), content)
    return found


def describe_mismatch(
    protocol: str, expected: Sequence[Tensor], message: bytes, json_bytes: int
) -> str:
    """Return how a response differs from the expected outputs, or "" if it does not differ."""
    if not expected:
        return ""
    try:
        outputs = grpc_outputs(message) if protocol == "grpc" else http_outputs(message, json_bytes)
        return find_mismatch(expected, outputs)
    except (ValueError, LookupError, TypeError, DecodeError, InvalidArgument) as error:
        return f"not a response of the protocol: {error}"


def find_mismatch(expected: Sequence[Tensor], outputs: Mapping[str, Output]) -> str:
    """Return the first difference from the expected outputs, or ""; floats may differ a little."""
    for tensor in expected:
        if tensor.name not in outputs:
            return f"output '{tensor.name}' is missing"
        output = outputs[tensor.name]
        if output.datatype != tensor.datatype:
            return f"output '{tensor.name}' is {output.datatype}, expected {tensor.datatype}"
        if output.raw != tensor.raw and (difference := _difference(tensor, output.raw)):
            return f"output '{tensor.name}': {difference}"
    return ""


def _difference(tensor: Tensor, raw: bytes) -> str:
    found, wanted = (_elements(content, tensor.datatype) for content in (raw, tensor.raw))
    if len(found) != len(wanted):
        return f"{len(found)} elements, expected {len(wanted)}"
    if tensor.datatype in _RELATIVE:
        near = np.isclose(
            found, wanted, rtol=_RELATIVE[tensor.datatype], atol=_ABSOLUTE, equal_nan=True
        )
        if near.all():
            return ""
        index = int(near.argmin())
    else:
        index = next(
            i for i, pair in enumerate(zip(found, wanted, strict=True)) if pair[0] != pair[1]
        )
    return f"element {index} is {found[index]}, expected {wanted[index]}"


def _elements(raw: bytes, datatype: str) -> Any:
    if datatype == BYTES:
        return split_bytes(raw)
    dtype = NUMPY_TYPE[datatype]
    return widened(
        np.frombuffer(raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype), datatype
    )
