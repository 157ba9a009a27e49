"""The requests that a model gets, made of what its executor sends."""

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


class Form:
    """The inputs and outputs that requests with the same form have."""

    def __init__(self, text: bytes) -> None:
        about = json.loads(text)
        self.inputs = [(name, datatype, tuple(shape)) for name, datatype, shape in about["inputs"]]
        self.outputs: list[str] = about["outputs"]
        self.requested_outputs = frozenset(self.outputs)


def make_request(
    form: Form, raws: Sequence[Any], execution: BatchExecution, member: int
) -> InferenceRequest:
    """The request of this member; raises TritonModelException if its segment was lost.

    raws: its inputs, and last, if there is one, the buffer for its outputs.
    """
    if wire.Range in map(type, raws):
        if len(raws) > len(form.inputs):
            execution.output_buffers[member] = raws[-1]
        raws = [
            execution.map_input(member, raw) if type(raw) is wire.Range else raw
            for raw in raws[: len(form.inputs)]
        ]
    request: InferenceRequest = _new(InferenceRequest)
    request._inputs = [
        Tensor.of_raw(name, datatype, shape, raw)
        for (name, datatype, shape), raw in zip(form.inputs, raws)  # noqa: B905 - Python 3.9
    ]
    request._outputs = form.outputs
    request._execution = execution
    request._member = member
    return request


def apply_metadata(request: InferenceRequest, meta: bytes) -> str:
    """Set what the executor sent about a request beside its tensors.

    Returns which iteration of the request it is; empty: its sequence is not iterative.
    """
    about = json.loads(meta)
    request._request_id = about.get("id", "")
    request._correlation_id = about.get("correlation_id", 0)
    request._flags = about.get("flags", 0)
    request._timeout = about.get("timeout_us", 0)
    parameters = about.get("parameters")
    if parameters:
        text = json.dumps(parameters, separators=(",", ":"), ensure_ascii=False)
        request._parameters = text
    request._trace = InferenceTrace(about.get("trace"))
    iteration: str = about.get("iteration", "")
    return iteration
