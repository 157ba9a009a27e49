"""Traces as JSON, in the format of Triton's trace files: an array of objects.

The objects for one model of a request have the same id. The first object names the model. Each
further object holds a time or a tensor.
"""

from __future__ import annotations

import json
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.core.tensors.byte_elements import split_bytes
from nereid.core.tensors.datatypes import BYTES, NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nereid.core.wire.messages import TracedModel, TracedTensor, TraceRule

_FLOAT: Final = frozenset({"FP16", "FP32", "FP64"})
_SHOWN: Final = NAMES - {"BF16"}
# REQUEST_START and QUEUE_START come before the tensors.
_UP_TO_QUEUE: Final = 2
_at_ns = itemgetter(1)


class Trace(NamedTuple):
    """Trace of one request. moments and tensors belong to the first model, the requested one."""

    models: Sequence[TracedModel]
    moments: Sequence[tuple[str, int]]
    tensors: Sequence[TracedTensor] = ()


def text_of(trace: Trace, rule: TraceRule, first_id: int) -> str:
    """Return the trace's objects, separated by commas. first_id: the id of the requested model."""
    # Sorted by start, parents come before their children.
    root, *others = trace.models
    others.sort(key=lambda model: model.times[0][1])
    ids = {model.context: first_id + index for index, model in enumerate((root, *others))}
    objects: list[dict[str, Any]] = []
    if rule.times:
        # Readers of the files expect the gateway's first times before all other objects.
        objects += _moments(first_id, trace.moments[:2])
        objects.append(_model(root, first_id, None))
    times = sorted((*root.times, *trace.moments[2:]), key=_at_ns)
    objects += _times_and_tensors(first_id, rule, times, trace.tensors)
    for model in others:
        number = ids[model.context]
        if rule.times:
            objects.append(_model(model, number, ids.get(model.parent, first_id)))
        objects += _times_and_tensors(number, rule, model.times, model.tensors)
    return ",".join(json.dumps(described, separators=(",", ":")) for described in objects)


def _times_and_tensors(
    number: int,
    rule: TraceRule,
    times: Sequence[tuple[str, int]],
    tensors: Sequence[TracedTensor],
) -> Iterator[dict[str, Any]]:
    """Yield a model's objects. As on Triton, tensors come after the time of queueing."""
    if rule.times:
        yield from _moments(number, times[:_UP_TO_QUEUE])
    if rule.tensors:
        yield from (_tensor(number, tensor) for tensor in tensors)
    if rule.times:
        yield from _moments(number, times[_UP_TO_QUEUE:])


def _model(model: TracedModel, number: int, parent: int | None) -> dict[str, Any]:
    described = {"id": number, "model_name": model.name, "model_version": model.version}
    if model.request_id:
        described["request_id"] = model.request_id
    if parent is not None:
        described["parent_id"] = parent
    return described


def _moments(number: int, moments: Sequence[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    for name, ns in moments:
        yield {"id": number, "timestamps": [{"name": name, "ns": ns}]}


def _tensor(number: int, tensor: TracedTensor) -> dict[str, Any]:
    described = {
        "name": tensor.name,
        "data": "" if tensor.data is None else _data(tensor.datatype, tensor.data),
        "shape": ",".join(map(str, tensor.shape)),
        "dtype": tensor.datatype,
    }
    return {"id": number, "activity": tensor.activity, "tensor": described}


def _data(datatype: str, data: bytes) -> str:
    """Return the elements, separated by commas. Strings are quoted, and floats are as in C++."""
    if datatype == BYTES:
        return ",".join(f'"{element.decode(errors="replace")}"' for element in split_bytes(data))
    if datatype not in _SHOWN:
        return ""
    # A gateway starts without NumPy (core.deferred_imports).
    import numpy as np  # noqa: PLC0415

    from nereid.core.tensors.tensors import NUMPY_TYPE  # noqa: PLC0415

    array = np.frombuffer(data, NUMPY_TYPE[datatype])
    if datatype in _FLOAT:
        return ",".join(f"{element:g}" for element in array.tolist())
    return ",".join(str(int(element)) for element in array.tolist())
