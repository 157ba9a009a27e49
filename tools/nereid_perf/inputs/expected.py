"""Compares responses with the outputs that the user's data expects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.byte_elements import join_bytes, split_bytes
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
_CONTENTS: Final = {
    "BOOL": "bool_contents",
    "UINT64": "uint64_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
}

# Key: an output's name. Value: datatype, raw bytes.
Outputs = dict[str, tuple[str, bytes]]


def grpc_outputs(message: bytes) -> Outputs:
    """Return the outputs of a ModelInferResponse. May raise ValueError or DecodeError."""
    response = kserve_pb2.ModelInferResponse.FromString(message)
    raw = iter(response.raw_output_contents)
    outputs: Outputs = {}
    for output in response.outputs:
        if response.raw_output_contents:
            content = next(raw, b"")
        elif output.datatype == BYTES:
            content = join_bytes(output.contents.bytes_contents)
        else:
            field = _CONTENTS.get(output.datatype)
            values = getattr(output.contents, field) if field else ()
            content = np.array(values, NUMPY_TYPE[output.datatype]).tobytes()
        outputs[output.name] = output.datatype, content
    return outputs


def http_outputs(body: bytes, json_bytes: int = 0) -> Outputs:
    """Return the outputs of an HTTP response; raise ValueError if it is broken.

    json_bytes: length of the JSON, from the response's header; 0 if the whole body is JSON.
    """
    document = json.loads(body[: json_bytes or len(body)])
    position = json_bytes
    outputs: Outputs = {}
    for output in document.get("outputs", ()):
        datatype = output["datatype"]
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            content, _ = raw_of(output.get("data", ()), datatype)
        else:
            content = body[position : position + size]
            position += size
        outputs[output["name"]] = datatype, content
    return outputs


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


def find_mismatch(expected: Sequence[Tensor], outputs: Mapping[str, tuple[str, bytes]]) -> str:
    """Return the first difference from the expected outputs, or ""; floats may differ a little."""
    for tensor in expected:
        if tensor.name not in outputs:
            return f"output '{tensor.name}' is missing"
        datatype, raw = outputs[tensor.name]
        if datatype != tensor.datatype:
            return f"output '{tensor.name}' is {datatype}, expected {tensor.datatype}"
        if raw != tensor.raw and (difference := _difference(tensor, raw)):
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
