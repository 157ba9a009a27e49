"""Converts requests to the form that workers get: JSON metadata, and tensors or their places."""

# layout: not compiled, off the hot path

from __future__ import annotations

import json
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from nereid.core import correlation_ids
from nereid.core.wire.trace_context import TRACE_STATE
from nereid.shm import mappings
from nereid.shm.reference import SharedMemory
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.backends import Request, RequestSpec

# The number of an iteration. The scheduler adds it to requests that may be rescheduled.
ITERATION: Final = "triton_iteration"


_NUMBER: Final = Struct("<Q")
_MAX_SPECS: Final = 1024


class KnownSpecs:
    """Request specs that a worker knows. A spec is sent to the worker once, with a number."""

    def __init__(self, send: Callable[[list[bytes]], None]) -> None:
        """Start without specs. send is called with the parts of a SPEC frame."""
        self._send = send
        self._numbers: dict[RequestSpec, int] = {}

    def clear(self) -> None:
        """Forget all specs, because the worker that knew them is replaced."""
        self._numbers.clear()

    def number_of(self, spec: RequestSpec) -> int:
        """Return a spec's number, counted from 1; send the spec if the worker does not know it."""
        return self._numbers.get(spec) or self._add(spec)

    def _add(self, spec: RequestSpec) -> int:
        if len(self._numbers) >= _MAX_SPECS:
            self._numbers.clear()
            self._send([_NUMBER.pack(0)])
        number = self._numbers[spec] = len(self._numbers) + 1
        self._send([_NUMBER.pack(number), spec_json(spec)])
        return number


def spec_json(spec: RequestSpec) -> bytes:
    """Return the inputs and outputs of requests with this spec as JSON."""
    return json.dumps({"inputs": spec.inputs, "outputs": spec.outputs}).encode()


def tensors_of(request: Request) -> Sequence[Any]:
    """Return a request's inputs or their places; at the end, its output buffer if it has one."""
    tensors, buffer = request.tensors, request.output_buffer
    if buffer is None and SharedMemory not in map(type, tensors):
        return tensors
    placed = [wire.Range(*tensor) if type(tensor) is SharedMemory else tensor for tensor in tensors]
    if buffer is not None:
        # The worker recognises the buffer because the list is longer than the inputs.
        placed.append(wire.Range(*buffer))
    return placed


def inline_tensors(tensors: Sequence[Any]) -> list[Any]:
    """Return tensors with copies of those in shared memory, for workers that map none.

    A segment that is gone stays a reference, for which the worker reports the usual error.
    """
    return [_read(tensor) if type(tensor) is SharedMemory else tensor for tensor in tensors]


def _read(reference: SharedMemory) -> Any:
    try:
        return mappings.read(reference)
    except mappings.SegmentLostError:
        return wire.Range(*reference)


def deadline_us(requests: Sequence[Request]) -> int:
    """Return the time until the last deadline of the requests; 0 if one of them has none."""
    times_us = [request.remaining_us for request in requests]
    return max(times_us) if times_us and all(times_us) else 0


def meta_of(request: Request) -> bytes:
    """Return a request's metadata as JSON; empty if the request has only tensors."""
    _, _, request_id, parameters, context, _, timeout_us, _ = request
    if not (request_id or parameters or context or timeout_us):
        return b""
    meta: dict[str, Any] = {}
    if request_id:
        meta["id"] = request_id
    if parameters:
        parameters = dict(parameters)
        correlation_id = parameters.pop("sequence_id", 0)
        if isinstance(correlation_id, int):
            correlation_id = correlation_ids.as_unsigned(correlation_id)
        meta["correlation_id"] = correlation_id
        flags = 1 if parameters.pop("sequence_start", False) else 0
        meta["flags"] = flags | (2 if parameters.pop("sequence_end", False) else 0)
        iteration = parameters.pop(ITERATION, None)
        if iteration:
            meta["iteration"] = iteration
        if parameters:
            meta["parameters"] = parameters
    if timeout_us:
        meta["timeout_us"] = timeout_us
    if context:
        text = context.hex()
        headers = {"traceparent": f"00-{text[2:34]}-{text[34:50]}-{text[50:52]}"}
        if state := context[TRACE_STATE]:
            headers["tracestate"] = state.decode("ascii", "replace")
        meta["trace"] = json.dumps(headers)
    return json.dumps(meta).encode()
