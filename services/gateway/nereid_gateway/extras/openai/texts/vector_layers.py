"""Layers that change a text's vector behind the pooling, with their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nereid.core.errors import InvalidArgument
from nereid.text.documents import parse_document
from nereid.text.layers import LAYER_NORM, NORMALIZE
from nereid_gateway.extras.openai.texts.outputs import normalized

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nereid.text.documents import Document
    from nereid.text.layers import Layer
    from nereid_gateway.extras.openai.texts.outputs import Vector

_DTYPES: Final = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_MAX_HEADER_BYTES: Final = 1 << 20
# As in torch.nn.LayerNorm.
_EPSILON: Final = 1e-5


class VectorLayers:
    """The layers of one model."""

    def __init__(self, layers: Sequence[Layer], files: Mapping[str, bytes]) -> None:
        """Read the weights. Raises InvalidArgument with the file that is wrong."""
        self._layers = [(layer, _weights_of(layer, files)) for layer in layers]

    def apply(self, vector: Vector) -> Vector:
        """Return what the layers make of a vector."""
        for layer, weights in self._layers:
            if layer.kind == NORMALIZE:
                vector = normalized(vector)
                continue
            if len(vector) != layer.inputs:
                raise InvalidArgument(
                    f"{layer.weights}: it changes vectors of {layer.inputs} values, but the model"
                    f" has {len(vector)}"
                )
            if layer.kind == LAYER_NORM:
                centered = vector - vector.mean()
                vector = centered / np.sqrt(np.float32(centered.var() + _EPSILON)) * weights[0]
            else:
                vector = weights[0] @ vector
            if layer.bias:
                vector = vector + weights[1]
            vector = _activated(vector, layer.activation)
        return vector


def _activated(vector: Vector, activation: str) -> Vector:
    result: NDArray[Any] = vector
    match activation:
        case "Tanh":
            result = np.tanh(vector)
        case "ReLU":
            result = np.maximum(vector, 0)
        case "Sigmoid":
            # exp() overflows to infinity, of which the result is 0.
            with np.errstate(over="ignore"):
                result = 1 / (1 + np.exp(-vector))
    return result


def _weights_of(layer: Layer, files: Mapping[str, bytes]) -> list[Vector]:
    if not layer.weights:
        return []
    shapes: dict[str, tuple[int, ...]]
    if layer.kind == LAYER_NORM:
        prefix, shapes = "norm", {"norm.weight": (layer.outputs,)}
    else:
        prefix, shapes = "linear", {"linear.weight": (layer.outputs, layer.inputs)}
    if layer.bias:
        shapes[f"{prefix}.bias"] = (layer.outputs,)
    return _read_tensors(layer.weights, files[layer.weights], shapes)


def _read_tensors(
    source: str, content: bytes, shapes: Mapping[str, tuple[int, ...]]
) -> list[Vector]:
    """Return tensors of a file of safetensors: the size of its header, JSON, and raw data."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > min(_MAX_HEADER_BYTES, len(content) - 8):
        raise InvalidArgument(f"{source}: not a file of safetensors")
    header = parse_document(source, content[8 : 8 + size])
    data = memoryview(content)[8 + size :]
    return [_read_tensor(header, data, name, shape) for name, shape in shapes.items()]


def _read_tensor(header: Document, data: memoryview, name: str, shape: tuple[int, ...]) -> Vector:
    if not header.has(name):
        raise header.refuse(name, "there is no such tensor")
    described = header.section(name)
    dtype = described.string("dtype")
    if dtype not in _DTYPES:
        raise described.refuse("dtype", f"expected one of {', '.join(_DTYPES)}")
    if described.counts("shape") != shape:
        raise described.refuse("shape", f"expected {list(shape)}")
    offsets = described.counts("data_offsets")
    size = int(np.prod(shape)) * np.dtype(_DTYPES[dtype]).itemsize
    if len(offsets) != 2 or offsets[1] - offsets[0] != size or offsets[1] > len(data):
        raise described.refuse("data_offsets", f"expected a range of {size} bytes of the file")
    array = np.frombuffer(data[offsets[0] : offsets[1]], _DTYPES[dtype]).reshape(shape)
    if dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)
