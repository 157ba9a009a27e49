"""Traces as JSON, in the form of Triton's trace files.

A file is an array of objects. Those of one model's part in a request share an id: one names the
model, others hold a time each, or a tensor. Pure.
"""

from __future__ import annotations

import json
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from nereid.datatypes import BYTES
from nereid.tensor import NUMPY_TYPE, split_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nereid.messages import TracedModel, TraceRule

# Of a tensor; the data of larger ones is left out.
LARGEST_BYTES: Final = 1 << 20
_FLOAT: Final = frozenset({"FP16", "FP32", "FP64"})
_TOLD: Final = NUMPY_TYPE.keys() - {"BF16"}
_at_ns = itemgetter(1)


class TracedTensor(NamedTuple):
    """An input or output; data None: it is not told."""

    activity: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | None


class Trace(NamedTuple):
    """A request: the models that took part, the one asked for first, and what the gateway saw."""

    models: Sequence[TracedModel]
    moments: Sequence[tuple[str, int]]
    tensors: Sequence[TracedTensor] = ()


def text_of(trace: Trace, rule: TraceRule, first_id: int) -> str:
    """The trace's objects, by commas. Its models have the ids from first_id on."""
    # By beginning, so that parents come before what is below them.
    root, *others = trace.models
    others.sort(key=lambda model: model.times[0][1])
    ids = {model.context: first_id + index for index, model in enumerate((root, *others))}
    told: list[dict[str, Any]] = []
    if rule.times:
        # What the gateway saw first stands before all else: readers go by it.
        told += _moments(first_id, trace.moments[:2])
        told.append(_model(root, first_id, None))
        told += _moments(first_id, sorted((*root.times, *trace.moments[2:]), key=_at_ns))
        for model in others:
            told.append(_model(model, ids[model.context], ids.get(model.parent, first_id)))
            told += _moments(ids[model.context], model.times)
    if rule.tensors:
        told += (_tensor(first_id, tensor) for tensor in trace.tensors)
    return ",".join(json.dumps(each, separators=(",", ":")) for each in told)


def _model(model: TracedModel, number: int, parent: int | None) -> dict[str, Any]:
    told = {"id": number, "model_name": model.name, "model_version": model.version}
    if model.request_id:
        told["request_id"] = model.request_id
    if parent is not None:
        told["parent_id"] = parent
    return told


def _moments(number: int, moments: Sequence[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    for name, ns in moments:
        yield {"id": number, "timestamps": [{"name": name, "ns": ns}]}


def _tensor(number: int, tensor: TracedTensor) -> dict[str, Any]:
    told = {
        "name": tensor.name,
        "data": "" if tensor.data is None else _data(tensor.datatype, tensor.data),
        "shape": ",".join(map(str, tensor.shape)),
        "dtype": tensor.datatype,
    }
    return {"id": number, "activity": tensor.activity, "tensor": told}


def _data(datatype: str, data: bytes) -> str:
    """The elements by commas: strings in quotes, floats as C++ writes them."""
    if datatype == BYTES:
        return ",".join(f'"{each.decode(errors="replace")}"' for each in split_bytes(data))
    if datatype not in _TOLD:
        return ""
    array = np.frombuffer(data, NUMPY_TYPE[datatype])
    if datatype in _FLOAT:
        return ",".join(f"{each:g}" for each in array.tolist())
    return ",".join(str(int(each)) for each in array.tolist())
