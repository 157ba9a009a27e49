"""Converts a model's calls to requests to the mesh, and the responses to the worker's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.bounded_cache import BoundedCache
from nereid.core.wire.codecs import read_parameters
from nereid.core.wire.messages import DECOUPLED, InferRequest
from nereid.core.wire.trace_context import CONTEXT_BYTES, MAX_TRACE_STATE
from nereid.pb import kserve_pb2
from nereid.shm.reference import SharedMemory
from nereid_executor.backends.python.messages.response_heads import code_name
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import ErrorStatus, InferResponse, Parameter

_LATEST: Final = -1
_UNKNOWN: Final = "Request for unknown model: "
_MAX_HEADS: Final = 1024
_MAX_HEAD_BYTES: Final = 4096


def infer_request(
    message: dict[str, Any], tensors: Sequence[Any], instance: int, deadline: float | None
) -> InferRequest:
    """Return the request to the mesh for a model's call.

    deadline: monotonic time at which the executing requests expire; None without a limit. A
    deadline in `message` is more exact and replaces it.
    """
    caller = instance
    if "deadline_ns" in message:
        deadline = int(message["deadline_ns"]) / 1e9 or None
        caller = instance if message["caller_known"] else 0
    return InferRequest(
        0,
        _request_head(message),
        [
            SharedMemory(*tensor) if type(tensor) is wire.Range else bytes(tensor)
            for tensor in tensors
        ],
        request_id=message["id"],
        parameters=_parameters(message),
        timeout_us=message["timeout_us"],
        deadline=deadline,
        trace_context=_trace_context(message["trace"], message.get("tracestate", "")),
        caller=caller,
        accepts_many=message.get("decoupled", False),
    )


def _request_head(message: dict[str, Any]) -> bytes:
    head = kserve_pb2.ModelInferRequest(model_name=message["model"])
    if message["version"] != _LATEST:
        head.model_version = str(message["version"])
    for name, datatype, shape in message["inputs"]:
        head.inputs.add(name=name, datatype=datatype, shape=shape)
    for name in message["outputs"]:
        head.outputs.add(name=name)
    return head.SerializeToString()


def _parameters(message: dict[str, Any]) -> dict[str, Parameter] | None:
    parameters: dict[str, Parameter] = dict(message["parameters"])
    correlation, flags = message["correlation_id"], message["flags"]
    if correlation or flags:
        parameters["sequence_id"] = correlation
        parameters["sequence_start"] = bool(flags & 1)
        parameters["sequence_end"] = bool(flags & 2)
    return parameters or None


def _trace_context(traceparent: str, tracestate: str) -> bytes:
    parts = traceparent.split("-")
    if len(parts) < 4:
        return b""
    context = b"\0" + bytes.fromhex("".join(parts[1:4]))
    if len(context) != CONTEXT_BYTES:
        raise ValueError(f"'{traceparent}' is no trace context")
    return context + tracestate.encode("ascii", "replace")[:MAX_TRACE_STATE]


_response_heads: BoundedCache[bytes, dict[str, Any]] = BoundedCache(_MAX_HEADS, _MAX_HEAD_BYTES)


def response_parts(model: str, response: InferResponse) -> tuple[int, Any, Sequence[Any]]:
    """Return a response's flags, metadata and tensors. The metadata is shared: never change it."""
    more = wire.MORE if response.more else 0
    if response.error is not None:
        message = _message_of(model, response.error)
        return wire.ERROR | more, [code_name(response.error.code), message], ()
    head = response.head
    if not head:
        return wire.EMPTY | more, None, ()
    reported = _response_heads.get(head) or _response_heads.remember(head, _read_head(head))
    tensors = [
        wire.Range(*payload) if type(payload) is SharedMemory else payload
        for payload in response.payloads
    ]
    return more, reported, tensors


def _read_head(head: bytes) -> dict[str, Any]:
    response = kserve_pb2.ModelInferResponse.FromString(head)
    outputs = [(output.name, output.datatype, list(output.shape)) for output in response.outputs]
    return {"outputs": outputs, "parameters": read_parameters(response.parameters)}


def _message_of(model: str, error_status: ErrorStatus) -> str:
    message = error_status.message
    if message == DECOUPLED:
        message = (
            f"Model {model} is using the decoupled. The current BLS request call doesn't support "
            "models using the decoupled transaction policy. Please use 'decoupled=True' argument "
            "to the 'exec' or 'async_exec' calls for decoupled models.'"
        )
    elif message.startswith(_UNKNOWN):
        message = f"Failed for execute the inference request. Model '{model}' is not ready."
    elif error_status.accepted:
        return message
    return f"Model {model} - Error when running inference: {message}"
