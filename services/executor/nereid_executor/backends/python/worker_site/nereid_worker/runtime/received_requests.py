"""Makes the requests that a model executes from the data that its executor sends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..pb_utils.requests import InferenceRequest, InferenceTrace
from ..pb_utils.tensors import Tensor
from ..protocol import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .execution import BatchExecution

_new = object.__new__


class RequestSpecEntry:
    """The inputs and requested outputs of all requests with one spec."""

    def __init__(self, text: bytes) -> None:
        message = json.loads(text)
        self.inputs = [
            (name, datatype, tuple(shape)) for name, datatype, shape in message["inputs"]
        ]
        self.outputs: list[str] = message["outputs"]
        self.requested_outputs = frozenset(self.outputs)


def make_request(
    spec: RequestSpecEntry, raws: Sequence[Any], execution: BatchExecution, member: int
) -> InferenceRequest:
    """Make a member's request; TritonModelException if an input is gone.

    raws: the inputs, and as the last element the buffer for outputs if there is one.
    """
    if wire.Range in map(type, raws):
        if len(raws) > len(spec.inputs):
            execution.output_buffers[member] = raws[-1]
        raws = [
            execution.map_input(member, raw) if type(raw) is wire.Range else raw
            for raw in raws[: len(spec.inputs)]
        ]
    request: InferenceRequest = _new(InferenceRequest)
    request._inputs = [
        Tensor.of_raw(name, datatype, shape, raw)
        for (name, datatype, shape), raw in zip(spec.inputs, raws)  # noqa: B905 - Python 3.9
    ]
    request._outputs = spec.outputs
    request._execution = execution
    request._member = member
    return request


def apply_metadata(request: InferenceRequest, meta: bytes) -> str:
    """Set a request's metadata; return its iteration, or "" if its sequence is not iterative."""
    message = json.loads(meta)
    request._request_id = message.get("id", "")
    request._correlation_id = message.get("correlation_id", 0)
    request._flags = message.get("flags", 0)
    request._timeout = message.get("timeout_us", 0)
    parameters = message.get("parameters")
    if parameters:
        text = json.dumps(parameters, separators=(",", ":"), ensure_ascii=False)
        request._parameters = text
    request._trace = InferenceTrace(message.get("trace"))
    iteration: str = message.get("iteration", "")
    return iteration
