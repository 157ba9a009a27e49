"""Zero or random tensors by a model's metadata: the least that can be sent to any model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nereid.pb import kserve_pb2 as pb
from nereid.perf.request import Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.perf.endpoint import Protocol

_NUMPY: Final = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
_VARIANTS: Final = 8


class UnknownShapeError(Exception):
    """A dimension is not known; the text names the input."""


class RepeatedRequests:
    """The same requests again and again."""

    def __init__(self, requests: tuple[Request, ...]) -> None:
        self._requests = cycle(requests)
        self._draining = False

    def next_request(self) -> Request | None:
        return None if self._draining else next(self._requests)

    def on_end(self, request: Request) -> None:
        """None waits for another."""

    def set_draining(self, *, draining: bool) -> None:
        self._draining = draining

    def find_mismatch(self, request: Request, message: bytes, json_bytes: int = 0) -> str:  # noqa: ARG002
        """Nothing is expected of random requests."""
        return ""


@dataclass(frozen=True, slots=True)
class SameSource:
    """Makes each worker's source."""

    requests: tuple[Request, ...]

    def __call__(self, worker: int, workers: int) -> RepeatedRequests:  # noqa: ARG002 (all alike)
        return RepeatedRequests(self.requests)


def plain_requests(  # noqa: PLR0913 (by keyword)
    metadata: Mapping[str, Any],
    protocol: Protocol,
    *,
    version: str = "",
    batch_size: int = 1,
    batches: bool = False,
    shapes: Mapping[str, tuple[int, ...]],
    string_length: int = 128,
    zero: bool = False,
    seed: int = 0,
) -> tuple[Request, ...]:
    """batches: the first dimension is the batch's. shapes: of inputs with dimensions that vary,
    without the batch's.

    Raises:
        UnknownShapeError: a shape is missing.
    """
    random = np.random.default_rng(seed)
    requests = []
    for _ in range(1 if zero else _VARIANTS):
        tensors = []
        for tensor in metadata["inputs"]:
            name, datatype = tensor["name"], tensor["datatype"]
            shape = list(tensor["shape"][1:] if batches else tensor["shape"])
            shape = list(shapes.get(name, shape))
            if any(each < 0 for each in shape):
                raise UnknownShapeError(f"input '{name}' varies in size: give --shape {name}:...")
            if batches:
                shape.insert(0, batch_size)
            content = _content(datatype, shape, string_length, None if zero else random)
            tensors.append((name, datatype, shape, content))
        make = _http_request if protocol == "http" else _grpc_request
        outputs = [each["name"] for each in metadata["outputs"]]
        requests.append(make(metadata["name"], version, tensors, outputs))
    return tuple(requests)


_Tensors = list[tuple[str, str, list[int], bytes]]


def _content(
    datatype: str, shape: list[int], string_length: int, random: np.random.Generator | None
) -> bytes:
    size = int(np.prod(shape, dtype=np.int64))
    if datatype == "BYTES":
        texts = [
            b"" if random is None else bytes(random.integers(97, 123, string_length, np.uint8))
            for _ in range(size)
        ]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    if datatype == "BF16":
        return bytes(2 * size)
    kind = _NUMPY[datatype]
    if random is None:
        return np.zeros(size, kind).tobytes()
    # Small enough to be an index, a token, or a pixel.
    return random.random(size).astype(kind).tobytes()


def _http_request(model: str, version: str, tensors: _Tensors, outputs: list[str]) -> Request:
    del model, version
    document = {
        "inputs": [
            {
                "name": name,
                "shape": shape,
                "datatype": datatype,
                "parameters": {"binary_data_size": len(content)},
            }
            for name, datatype, shape, content in tensors
        ],
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in outputs],
    }
    head = json.dumps(document, separators=(",", ":")).encode()
    return Request(head + b"".join(content for *_, content in tensors), len(head))


def _grpc_request(model: str, version: str, tensors: _Tensors, outputs: list[str]) -> Request:
    message = pb.ModelInferRequest(model_name=model, model_version=version)
    for name, datatype, shape, content in tensors:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(content)
    for name in outputs:
        message.outputs.add(name=name)
    return Request(message.SerializeToString())
