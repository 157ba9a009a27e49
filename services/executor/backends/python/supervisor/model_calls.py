"""What a worker's model asks of the mesh, and the answers on their way back to it.

The instance's thread hands calls over and fetches answers; these come from the event loop.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from nereid.core.codecs import read_parameters
from nereid.core.errors import InvalidArgument, NereidError
from nereid.core.messages import DECOUPLED, InferRequest, SharedMemory
from nereid.observability.tracing import CONTEXT_BYTES
from nereid.pb import kserve_pb2
from nereid.services.executor.backends.python.supervisor.response_heads import code_name
from nereid.services.executor.backends.python.worker_site.nereid_worker import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.backends import MeshClient, MeshRequest, RequestControl
    from nereid.core.messages import ErrorStatus, InferResponse, Parameter

_LATEST = -1
_UNKNOWN = "Request for unknown model: "


class Calls:
    """One worker's calls. mesh None: nothing can be asked."""

    def __init__(self, mesh: MeshClient | None, instance: int) -> None:
        self._mesh = mesh
        self._instance = instance
        self._responses: deque[wire.Call] = deque()
        self._asked: dict[int, MeshRequest] = {}
        # What the two threads share; the collector may come by in the midst of it.
        self._lock = threading.RLock()
        # The segments of answers that the worker has, or is about to get.
        self._lent: set[str] = set()
        self._closed = False
        # Nobody waits any longer for those that the model executes now, unless its worker knows
        # better for whose sake it asks.
        self.deadline: float | None = None
        # Readable when there are answers to fetch.
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._bell

    def close(self) -> None:
        """The worker is gone: nobody wants the answers, or reads those that it had."""
        with self._lock:
            self._closed = True
            asked, self._asked = self._asked, {}
            lent, self._lent = self._lent, set()
            bell, self._bell = self._bell, -1
        for each in asked.values():
            each.send_control("cancel")
        for segment_name in lent:
            self._give_back(segment_name)
        os.close(bell)

    def fetch(self) -> list[wire.Call]:
        """The answers that are there."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        responses = []
        while self._responses:
            responses.append(self._responses.popleft())
        return responses

    def hear(self, call: wire.Call) -> None:
        """Take a call; what makes no sense is answered so."""
        try:
            about = json.loads(call.meta)
            self._ask(call, about, about["what"])
        except NereidError as error:
            self._fail(call.number, error)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            text = f"the request to the mesh makes no sense: {error}"
            self._fail(call.number, InvalidArgument(text))

    def _ask(self, call: wire.Call, about: dict[str, Any], what: str) -> None:
        number = call.number
        if what in ("cancel", "pause", "resume"):
            asked = self._asked.get(about["call"])
            if asked is not None:
                asked.send_control(cast("RequestControl", what))
            if what == "cancel":
                with self._lock:
                    self._asked.pop(about["call"], None)
            self._put(wire.Call(number, wire.EMPTY, b"", ()))
        elif what == "release":
            with self._lock:
                known = about["segment_name"] in self._lent
                self._lent.discard(about["segment_name"])
            if known:
                self._give_back(about["segment_name"])
        elif self._mesh is None:
            raise InvalidArgument("there is no mesh to ask")
        elif what == "infer":
            request = infer_request(about, call.tensors)
            request.caller, request.deadline = self._instance, self.deadline
            if "until_ns" in about:
                request.deadline = int(about["until_ns"]) / 1e9 or None
                request.caller = self._instance if about["sure"] else 0
            # Its answer may come before this has ended.
            with self._lock:
                self._asked[number] = self._mesh.infer(
                    request,
                    lambda wire_response: self._responded(number, about["model"], wire_response),
                )
        else:
            method, message = _CALLS[what](about, call.tensors)
            self._mesh.call_scheduler(
                method, message, lambda reply: self._replied(number, method, reply)
            )

    # ---- on the event loop

    def _responded(self, number: int, model: str, wire_response: InferResponse) -> None:
        more = wire.MORE if wire_response.more else 0
        with self._lock:
            if not more:
                self._asked.pop(number, None)
            closed = self._closed
            if wire_response.segment_name and not closed:
                self._lent.add(wire_response.segment_name)
        if closed:
            if wire_response.segment_name:
                self._give_back(wire_response.segment_name)
        elif wire_response.error is not None:
            meta = json.dumps(
                [code_name(wire_response.error.code), _text(model, wire_response.error)]
            ).encode()
            self._put(wire.Call(number, wire.ERROR | more, meta, ()))
        elif not wire_response.head:
            self._put(wire.Call(number, wire.EMPTY | more, b"", ()))
        else:
            meta = response_meta(wire_response.head)
            tensors = [
                wire.Range(*each) if type(each) is SharedMemory else each
                for each in wire_response.payloads
            ]
            self._put(wire.Call(number, more, meta, tensors))

    def _give_back(self, segment_name: str) -> None:
        if self._mesh is not None:
            self._mesh.release_segment(segment_name)

    def _replied(self, number: int, method: str, reply: bytes | NereidError) -> None:
        if isinstance(reply, NereidError):
            self._fail(number, reply)
            return
        result = None
        if method == "ModelReady":
            result = kserve_pb2.ModelReadyResponse.FromString(reply).ready
        self._put(wire.Call(number, 0, json.dumps(result).encode(), ()))

    def _fail(self, number: int, error: NereidError) -> None:
        meta = json.dumps([code_name(error.code), error.message]).encode()
        self._put(wire.Call(number, wire.ERROR, meta, ()))

    def _put(self, wire_response: wire.Call) -> None:
        self._responses.append(wire_response)
        self.ring()

    def ring(self) -> None:
        """Wake the instance's thread."""
        with self._lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)


def _text(model: str, error_status: ErrorStatus) -> str:
    """What a model is told of a request's fault: that it was refused, or what went wrong later."""
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


def infer_request(about: dict[str, Any], tensors: Any) -> InferRequest:
    """The request that a model describes."""
    head = kserve_pb2.ModelInferRequest(model_name=about["model"])
    if about["version"] != _LATEST:
        head.model_version = str(about["version"])
    for name, datatype, shape in about["inputs"]:
        head.inputs.add(name=name, datatype=datatype, shape=shape)
    for name in about["outputs"]:
        head.outputs.add(name=name)
    return InferRequest(
        0,
        head.SerializeToString(),
        [SharedMemory(*each) if type(each) is wire.Range else bytes(each) for each in tensors],
        request_id=about["id"],
        parameters=_parameters(about),
        timeout_us=about["timeout_us"],
        trace_context=_trace_context(about["trace"]),
        accepts_many=about.get("decoupled", False),
    )


def _parameters(about: dict[str, Any]) -> dict[str, Parameter] | None:
    parameters: dict[str, Parameter] = dict(about["parameters"])
    correlation, flags = about["correlation_id"], about["flags"]
    if correlation or flags:
        parameters["sequence_id"] = correlation
        parameters["sequence_start"] = bool(flags & 1)
        parameters["sequence_end"] = bool(flags & 2)
    return parameters or None


def _trace_context(traceparent: str) -> bytes:
    """W3C's text form as the 26 bytes that travel here; empty if there is none."""
    parts = traceparent.split("-")
    if len(parts) < 4:
        return b""
    context = b"\0" + bytes.fromhex("".join(parts[1:4]))
    if len(context) != CONTEXT_BYTES:
        raise ValueError(f"'{traceparent}' is no trace context")
    return context


def response_meta(head: bytes) -> bytes:
    """What a worker is told of an answer beside its tensors."""
    response = kserve_pb2.ModelInferResponse.FromString(head)
    outputs = [(each.name, each.datatype, list(each.shape)) for each in response.outputs]
    parameters = read_parameters(response.parameters)
    return json.dumps({"outputs": outputs, "parameters": parameters}).encode()


def _load(about: dict[str, Any], tensors: Any) -> tuple[str, bytes]:
    message = kserve_pb2.RepositoryModelLoadRequest(model_name=about["model"])
    if about["config"]:
        message.parameters["config"].string_param = about["config"]
    for name, content in zip(about["files"], tensors, strict=True):
        message.parameters[name].bytes_param = bytes(content)
    return "RepositoryModelLoad", message.SerializeToString()


def _unload(about: dict[str, Any], _tensors: Any) -> tuple[str, bytes]:
    message = kserve_pb2.RepositoryModelUnloadRequest(model_name=about["model"])
    message.parameters["unload_dependents"].bool_param = about["dependents"]
    return "RepositoryModelUnload", message.SerializeToString()


def _ready(about: dict[str, Any], _tensors: Any) -> tuple[str, bytes]:
    message = kserve_pb2.ModelReadyRequest(name=about["model"], version=about["version"])
    return "ModelReady", message.SerializeToString()


_CALLS: dict[str, Callable[[dict[str, Any], Any], tuple[str, bytes]]] = {
    "load": _load,
    "unload": _unload,
    "ready": _ready,
}
