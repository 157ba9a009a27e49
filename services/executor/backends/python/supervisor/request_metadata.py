"""What a worker is told of a request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nereid.core.messages import SharedMemory
from nereid.services.executor.backends.python.worker_site.nereid_worker import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.backends import Request, RequestSpec


def form_of(form: RequestSpec) -> bytes:
    """What alike requests have and want, as JSON."""
    return json.dumps({"inputs": form.inputs, "outputs": form.outputs}).encode()


def tensors_of(request: Request) -> Sequence[Any]:
    """Its inputs' bytes, or where they lie; and last, if it has one, the room for its outputs."""
    tensors, room = request.tensors, request.output_buffer
    if room is None and SharedMemory not in map(type, tensors):
        return tensors
    placed = [wire.Range(*each) if type(each) is SharedMemory else each for each in tensors]
    if room is not None:
        # One more than its form has.
        placed.append(wire.Range(*room))
    return placed


def meta_of(request: Request) -> bytes:
    """What is told of a request beside its tensors, as JSON; empty: nothing."""
    context = request.trace_context
    if not (request.request_id or request.parameters or context or request.timeout_us):
        return b""
    meta: dict[str, Any] = {}
    if request.request_id:
        meta["id"] = request.request_id
    if request.parameters:
        parameters = dict(request.parameters)
        meta["correlation_id"] = parameters.pop("sequence_id", 0)
        flags = 1 if parameters.pop("sequence_start", False) else 0
        meta["flags"] = flags | (2 if parameters.pop("sequence_end", False) else 0)
        if parameters:
            meta["parameters"] = parameters
    if request.timeout_us:
        meta["timeout_us"] = request.timeout_us
    if context:
        text = context.hex()
        meta["trace"] = json.dumps({"traceparent": f"00-{text[2:34]}-{text[34:50]}-{text[50:52]}"})
    return json.dumps(meta).encode()
