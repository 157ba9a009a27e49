"""Messages between an executor and the process of a confined model: arrays, descriptions, errors.

The readers check everything, because the model's code may write to the socket.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from nereid.backends import Capabilities, InstanceSpec, ModelDescription, TensorDescription
from nereid.core.errors import NereidError, error_from_code
from nereid.core.tensors.byte_elements import join_bytes, split_bytes
from nereid.pb import model_config_pb2
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nereid.core.tensors.tensors import Array

_TEXT: Final = "text"
_BYTES: Final = "bytes"
# All types of numpy but objects, which are sent by their elements.
_RAW: Final = re.compile(r"[<>|=][biufcSUmMV]\d+(\[\w+\])?")
_MALFORMED: Final = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError,
    DecodeError, NereidError,
)  # fmt: skip


def spec_parts(spec: InstanceSpec) -> list[bytes]:
    """Return the body of an INITIALIZE or DESCRIBE frame."""
    message = {
        "config": _encode(spec.config),
        "version": spec.version,
        "version_path": str(spec.version_path),
        "name": spec.name,
        "gpu": spec.gpu,
        "settings": dict(spec.settings),
        "threads": spec.threads,
    }
    return [json.dumps(message).encode()]


def read_spec(body: bytearray) -> InstanceSpec:
    """Return the instance to load or to describe."""
    message = json.loads(bytes(body))
    config = _decode(message.pop("config"))
    version_path = Path(message.pop("version_path"))
    return InstanceSpec(config=config, version_path=version_path, **message)


def loaded_parts(description: ModelDescription, capabilities: Capabilities) -> list[bytes]:
    """Return the body of an INITIALIZED or DESCRIBED frame."""
    config = description.config
    declared = asdict(capabilities)
    message = {
        "inputs": description.inputs,
        "outputs": description.outputs,
        "config": None if config is None else _encode(config),
        "mixes_rows": description.mixes_rows,
        "capabilities": {**declared, "ragged_outputs": dict(capabilities.ragged_outputs)},
    }
    return [json.dumps(message).encode()]


def failed_parts(error: NereidError) -> list[bytes]:
    """Return the body of an INITIALIZED or DESCRIBED frame that reports a failure."""
    return [json.dumps({"error": _error(error)}).encode()]


def read_loaded(body: bytearray) -> tuple[ModelDescription, Capabilities]:
    """Return what was loaded or described. Raise the worker's NereidError, or wire.WireError."""
    try:
        message = json.loads(bytes(body))
        error = _read_error(message["error"]) if "error" in message else None
        if error is None:
            config = message["config"]
            declared = message["capabilities"]
            description = ModelDescription(
                _read_tensors(message["inputs"]),
                _read_tensors(message["outputs"]),
                None if config is None else _decode(config),
                bool(message["mixes_rows"]),
            )
            capabilities = Capabilities(
                bytes_as_text=bool(declared["bytes_as_text"]),
                escapes_bytes=bool(declared["escapes_bytes"]),
                leaves_arrays=bool(declared["leaves_arrays"]),
                ragged_outputs={str(k): str(v) for k, v in declared["ragged_outputs"].items()},
            )
    except _MALFORMED as malformed:
        raise wire.WireError("a malformed description") from malformed
    if error is not None:
        raise error
    return description, capabilities


def batch_parts(inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Any]:
    """Return the body of a BATCH frame."""
    heads, tensors = _write_arrays(inputs.values())
    meta = {"inputs": dict(zip(inputs, heads, strict=True)), "outputs": list(outputs)}
    return wire.call_parts(wire.Call(0, 0, json.dumps(meta).encode(), tensors))


def read_batch(body: bytearray) -> tuple[dict[str, Array], list[str]]:
    """Return the inputs of a BATCH frame, and the names of the outputs."""
    call = wire.read_call(body)
    meta = json.loads(call.meta)
    arrays = _read_arrays(meta["inputs"].values(), call.tensors)
    return dict(zip(meta["inputs"], arrays, strict=True)), meta["outputs"]


def outputs_parts(outputs: Sequence[Array]) -> list[Any]:
    """Return the body of a RESPONSES frame."""
    heads, tensors = _write_arrays(outputs)
    return wire.call_parts(wire.Call(0, 0, json.dumps(heads).encode(), tensors))


def error_parts(error: NereidError) -> list[Any]:
    """Return the body of a RESPONSES frame that reports a failure."""
    return wire.call_parts(wire.Call(0, wire.ERROR, json.dumps(_error(error)).encode(), ()))


def read_outputs(body: bytearray) -> list[Array]:
    """Return the arrays of a RESPONSES frame. Raise the worker's NereidError, or wire.WireError."""
    call = wire.read_call(body)
    try:
        meta = json.loads(call.meta)
        if not call.flags & wire.ERROR:
            return _read_arrays(meta, call.tensors)
        error = _read_error(meta)
    except _MALFORMED as malformed:
        raise wire.WireError("malformed outputs") from malformed
    raise error


def _write_arrays(arrays: Iterable[Array]) -> tuple[list[tuple[str, Any]], list[Any]]:
    """Return the heads (type and shape) and the contents of arrays."""
    heads: list[tuple[str, Any]] = []
    tensors: list[Any] = []
    for array in arrays:
        kind, raw = _content(array)
        heads.append((kind, array.shape))
        tensors.append(raw)
    return heads, tensors


def _content(array: Array) -> tuple[str, Any]:
    if not array.dtype.hasobject:
        # An empty array has no memory to view.
        flat = np.ascontiguousarray(array).reshape(-1)
        return array.dtype.str, flat.view(np.uint8).data if array.size else b""
    elements = array.reshape(-1).tolist()
    if all(isinstance(element, str) for element in elements):
        return _TEXT, join_bytes(each.encode(errors="surrogateescape") for each in elements)
    return _BYTES, join_bytes(elements)


def _read_arrays(heads: Iterable[Any], tensors: Sequence[Any]) -> list[Array]:
    return [
        _read_array(kind, shape, raw) for (kind, shape), raw in zip(heads, tensors, strict=True)
    ]


def _read_array(kind: str, shape: Sequence[int], raw: memoryview) -> Array:
    """Return a read-only array of this memory; strings are copied."""
    if kind not in {_TEXT, _BYTES}:
        if _RAW.fullmatch(kind) is None:
            raise ValueError(f"no type of an array: {kind}")
        array: Array = np.ndarray(shape, kind, raw.toreadonly())
        if array.nbytes != len(raw):
            raise ValueError("an array that does not fill its shape")
        return array
    elements: list[Any] = split_bytes(raw)
    if kind == _TEXT:
        elements = [each.decode(errors="surrogateescape") for each in elements]
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    array = array.reshape(shape)
    array.flags.writeable = False
    return array


def _read_tensors(tensors: Iterable[Any]) -> tuple[TensorDescription, ...]:
    return tuple(
        TensorDescription(
            str(name),
            str(datatype),
            None if dims is None else tuple(map(int, dims)),
            bool(optional),
        )
        for name, datatype, dims, optional in tensors
    )


def _error(error: NereidError) -> tuple[int, str, bool]:
    return error.code, error.message, error.accepted


def _read_error(fields: Sequence[Any]) -> NereidError:
    code, message, accepted = fields
    text = str(message).encode("utf-8", "backslashreplace").decode()
    return error_from_code(int(code), text, accepted=bool(accepted))


def _encode(config: model_config_pb2.ModelConfig) -> str:
    return base64.b64encode(config.SerializeToString()).decode()


def _decode(text: str) -> model_config_pb2.ModelConfig:
    return model_config_pb2.ModelConfig.FromString(base64.b64decode(text))
