"""Passes a model's calls to the mesh, and the responses back to the worker.

The event loop sends responses, or leaves them to the instance's thread if it would have to wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from nereid.core.callable_models import write_callable_models
from nereid.core.errors import InvalidArgument, NereidError, PermissionDenied, Unavailable
from nereid.core.wire.messages import payload_bytes
from nereid.pb import kserve_pb2
from nereid.shm.segments import segment_owner
from nereid_executor.backends.python.messages.call_messages import infer_request, response_parts
from nereid_executor.backends.python.messages.request_metadata import inline_tensors
from nereid_executor.backends.python.messages.response_heads import code_name
from nereid_executor.backends.python.sandbox.policy import CONTROL
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.backends import MeshClient, MeshRequest, RequestControl
    from nereid.core.wire.messages import InferRequest, InferResponse
    from nereid_executor.backends.python.sandbox.policy import Confinement


class ModelCalls:
    """The pending calls of one worker's model."""

    def __init__(
        self, mesh: MeshClient | None, instance: int, confinement: Confinement | None = None
    ) -> None:
        """instance: the instance's number. Without a mesh, all calls are refused."""
        self._mesh = mesh
        self._instance = instance
        self._confinement = confinement
        # Process id of the worker; its calls may refer to its own segments only.
        self.worker_pid = 0
        self._responses: deque[wire.Call] = deque()
        # Key: a pending call. Value: its request, and the bytes of the request's tensors.
        self._requests: dict[int, tuple[MeshRequest, int]] = {}
        self._pending_bytes = 0
        # The lock is reentrant: a finaliser may interrupt a thread that holds the lock.
        self._lock = threading.RLock()
        # Names of segments with responses that the worker is reading or has yet to get.
        self._segments: set[str] = set()
        self._closed = False
        # Sends the worker a response unless that needs waiting; returns whether it was sent.
        self.try_send: Callable[[wire.Call], bool] = lambda _response: False
        # Responses that the instance's thread has yet to send. Later ones must not overtake them.
        self._unsent = 0
        # Deadline of the executing requests (time.monotonic). The model's calls get this deadline,
        # unless the worker sends a more exact one.
        self.deadline: float | None = None
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are responses to collect."""
        return self._event

    def close(self) -> None:
        """Cancel the calls of a worker that has ended, and release the responses' segments."""
        with self._lock:
            self._closed = True
            requests, self._requests = self._requests, {}
            segments, self._segments = self._segments, set()
            event, self._event = self._event, -1
        for request, _ in requests.values():
            request.send_control("cancel")
        for segment_name in segments:
            self._release_segment(segment_name)
        os.close(event)

    def collect_responses(self) -> list[wire.Call]:
        """Return the responses that the instance's thread has to send."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        responses = []
        while self._responses:
            responses.append(self._responses.popleft())
        return responses

    def note_sent(self) -> None:
        """Note that one of the collected responses was sent."""
        with self._lock:
            self._unsent -= 1

    def start_call(self, call: wire.Call) -> None:
        """Start a call. A malformed call gets an error as its response."""
        try:
            message = json.loads(call.meta)
            self._start(call, message, message["what"])
        except NereidError as error:
            self._fail(call.number, error)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            text = f"malformed request to the mesh: {error}"
            self._fail(call.number, InvalidArgument(text))

    def _start(self, call: wire.Call, message: dict[str, Any], what: str) -> None:
        number = call.number
        if what in ("cancel", "pause", "resume"):
            request, _ = self._requests.get(message["call"], (None, 0))
            if request is not None:
                request.send_control(cast("RequestControl", what))
            if what == "cancel":
                with self._lock:
                    self._forget_request(message["call"])
            self._enqueue_response(wire.Call(number, wire.EMPTY, b"", ()))
        elif what == "release":
            self._release_read(message["segment_names"])
        elif self._mesh is None:
            raise InvalidArgument("the model cannot make requests to the mesh")
        elif what == "infer":
            if "released" in message:
                self._release_read(message["released"])
            self._check_called(message["model"])
            self._check_segments(call.tensors)
            infer = infer_request(message, call.tensors, self._instance, self.deadline)
            self._limit_request(infer)
            size_bytes = sum(map(payload_bytes, infer.payloads))
            # The response may arrive before infer() returns. It must find the request in the table.
            with self._lock:
                self._check_pending(size_bytes)
                request = self._mesh.infer(
                    infer,
                    lambda response: self._on_infer_response(number, message["model"], response),
                )
                self._requests[number] = request, size_bytes
                self._pending_bytes += size_bytes
        else:
            self._check_right(what)
            self._check_called(message["model"])
            method, body = _CALLS[what](message, call.tensors)
            self._mesh.call_scheduler(
                method, body, lambda reply: self._on_reply(number, method, reply)
            )

    def _check_segments(self, tensors: Sequence[Any]) -> None:
        for tensor in tensors:
            if type(tensor) is wire.Range and segment_owner(tensor.segment) != str(self.worker_pid):
                raise InvalidArgument("a tensor of the request is in another process's memory")

    def _check_pending(self, size_bytes: int) -> None:
        """Refuse a confined model's call that would fill the memory of the mesh."""
        confinement = self._confinement
        if confinement is not None and self._pending_bytes + size_bytes > confinement.frame_bytes:
            raise Unavailable(
                "the pending calls of the confined model have more bytes than its memory"
                " (--sandbox-memory-bytes)"
            )

    def _forget_request(self, number: int) -> None:
        _, size_bytes = self._requests.pop(number, (None, 0))
        self._pending_bytes -= size_bytes

    def _check_right(self, what: str) -> None:
        confinement = self._confinement
        if what != "ready" and confinement is not None and CONTROL not in confinement.allows:
            raise PermissionDenied(
                "a confined model may load and unload models only with sandbox_allow: model-control"
            )

    def _check_called(self, model: str) -> None:
        confinement = self._confinement
        calls = None if confinement is None else confinement.calls
        if calls is not None and not calls.match(model):
            raise PermissionDenied(
                f"the confined model may not call model '{model}' (--sandbox-call)"
            )

    def _limit_request(self, infer: InferRequest) -> None:
        """Add by whose right a confined model makes a request: its clients', or its own."""
        confinement = self._confinement
        if confinement is None:
            return
        if confinement.calls is None:
            infer.confined_caller = self._instance
        else:
            # The scheduler replaces it by the clients' rights, if it knows for whom the request is.
            infer.callable_models = write_callable_models(confinement.calls)

    def _release_read(self, segment_names: list[str]) -> None:
        with self._lock:
            known = self._segments.intersection(segment_names)
            self._segments -= known
        for segment_name in known:
            self._release_segment(segment_name)

    def _on_infer_response(self, number: int, model: str, response: InferResponse) -> None:
        with self._lock:
            if not response.more:
                self._forget_request(number)
            closed = self._closed
            if response.segment_name and not closed:
                self._segments.add(response.segment_name)
        if closed:
            if response.segment_name:
                self._release_segment(response.segment_name)
        else:
            if self._confinement is not None:
                response = self._inline(response)
            flags, reported, tensors = response_parts(model, response)
            meta = b"" if reported is None else json.dumps(reported).encode()
            self._enqueue_response(wire.Call(number, flags, meta, tensors))

    def _inline(self, response: InferResponse) -> InferResponse:
        if not response.segment_name:
            return response
        inline = response.with_payloads(inline_tensors(response.payloads))
        self._release_read([response.segment_name])
        return inline

    def _release_segment(self, segment_name: str) -> None:
        if self._mesh is not None:
            self._mesh.release_segment(segment_name)

    def _on_reply(self, number: int, method: str, reply: bytes | NereidError) -> None:
        if isinstance(reply, NereidError):
            self._fail(number, reply)
            return
        result = None
        if method == "ModelReady":
            result = kserve_pb2.ModelReadyResponse.FromString(reply).ready
        self._enqueue_response(wire.Call(number, 0, json.dumps(result).encode(), ()))

    def _fail(self, number: int, error: NereidError) -> None:
        meta = json.dumps([code_name(error.code), error.message]).encode()
        self._enqueue_response(wire.Call(number, wire.ERROR, meta, ()))

    def _enqueue_response(self, response: wire.Call) -> None:
        with self._lock:
            if self._closed or (not self._unsent and self.try_send(response)):
                return
            self._unsent += 1
            self._responses.append(response)
        self.wake()

    def wake(self) -> None:
        """Wake the instance's thread."""
        with self._lock:
            if self._event >= 0:
                os.eventfd_write(self._event, 1)


def _load(message: dict[str, Any], tensors: Any) -> tuple[str, bytes]:
    request = kserve_pb2.RepositoryModelLoadRequest(model_name=message["model"])
    if message["config"]:
        request.parameters["config"].string_param = message["config"]
    for name, content in zip(message["files"], tensors, strict=True):
        request.parameters[name].bytes_param = bytes(content)
    return "RepositoryModelLoad", request.SerializeToString()


def _unload(message: dict[str, Any], _tensors: Any) -> tuple[str, bytes]:
    request = kserve_pb2.RepositoryModelUnloadRequest(model_name=message["model"])
    request.parameters["unload_dependents"].bool_param = message["dependents"]
    return "RepositoryModelUnload", request.SerializeToString()


def _ready(message: dict[str, Any], _tensors: Any) -> tuple[str, bytes]:
    request = kserve_pb2.ModelReadyRequest(name=message["model"], version=message["version"])
    return "ModelReady", request.SerializeToString()


_CALLS: dict[str, Callable[[dict[str, Any], Any], tuple[str, bytes]]] = {
    "load": _load,
    "unload": _unload,
    "ready": _ready,
}
