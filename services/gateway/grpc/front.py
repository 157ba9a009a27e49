"""gRPC in front of the data plane: the tables of handlers that either edge engine serves.

ModelInfer is one plain function and one callback; streams are grpc_stream's; control methods hand
bytes through to the scheduler.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.core.errors import NereidError
from nereid.core.messages import DECOUPLED
from nereid.pb import kserve_pb2
from nereid.rpc import Handlers, RpcError, Status
from nereid.services.gateway.grpc import health, infer_codec, reflection, shared_memory, wire_format
from nereid.services.gateway.grpc.infer_stream import InferStreams
from nereid.services.gateway.tracing import trace_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

    from nereid.core.messages import InferRequest, InferResponse
    from nereid.rpc import Call
    from nereid.services.gateway.data_plane import DataPlane
    from nereid.services.gateway.policy.header_forwarding import HeaderForwarding
    from nereid.services.gateway.shared_tensors import MessageBuffer

    Respond = Callable[[bytes], Awaitable[bytes]]

_SERVICE: Final = "/inference.GRPCInferenceService/"
_SHUTTING_DOWN: Final = "GRPC server is shutting down and has stopped accepting new requests."
# Handed through to the scheduler as they are.
_PASSED_ON: Final = (
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "TraceSetting",
    "LogSettings",
)
# Clients round the deadline up for the wire, and cancel at the one that they know.
_DEADLINE_ERROR_S: Final = 0.05


class GrpcFront:
    """Handlers of KServe's inference service, health and reflection."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._decoder = infer_codec.GrpcDecoder(data_plane.regions)
        # How often each status was answered, by its number.
        self.statuses: dict[int, int] = defaultdict(int)
        self._streams = InferStreams(data_plane, self._decoder, self.statuses, _early_end)
        self._forwarding: HeaderForwarding | None = None

    def forward(self, forwarding: HeaderForwarding) -> None:
        """From now on metadata becomes parameters."""
        self._forwarding = self._streams.forwarding = forwarding

    def handlers(self) -> Handlers:
        """The table to serve."""
        asynchronous: dict[str, Respond] = {
            _SERVICE + "ServerLive": self._server_live,
            _SERVICE + "ServerReady": self._server_ready,
            _SERVICE + "ServerMetadata": self._server_metadata,
            health.CHECK: health.Health(self._data_plane.ready).check,
        }
        for method in _PASSED_ON:
            asynchronous[_SERVICE + method] = self._pass_on(method)
        for method, respond in shared_memory.methods(self._data_plane.regions).items():
            asynchronous[_SERVICE + method] = respond
        return Handlers(
            unary={_SERVICE + "ModelInfer": self._infer},
            rooms={_SERVICE + "ModelInfer": self._room},
            async_unary={path: self._guard(respond) for path, respond in asynchronous.items()},
            stream={
                _SERVICE + "ModelStreamInfer": self._stream_infer,
                **reflection.handlers((_SERVICE.strip("/"), health.SERVICE)),
            },
            compressible=frozenset((_SERVICE + "ModelInfer", _SERVICE + "ModelStreamInfer")),
        )

    # --- infer ----------------------------------------------------------------------------------

    def _room(self, size_bytes: int, beginning: memoryview) -> MessageBuffer | None:
        """Where a message goes that comes in pieces."""
        header_bytes = wire_format.first_tensor(beginning)
        return self._data_plane.shared_tensors.room(size_bytes, header_bytes)

    def _decode(self, message: bytes | MessageBuffer) -> InferRequest:
        if isinstance(message, bytes):
            return self._decoder.decode(message)
        return self._decoder.decode_room(message)

    def _infer(self, call: Call, message: bytes | MessageBuffer) -> None:
        data_plane, statuses = self._data_plane, self.statuses
        if data_plane.draining:
            statuses[Status.UNAVAILABLE] += 1
            call.fail(Status.UNAVAILABLE, _SHUTTING_DOWN)
            return
        tracing = data_plane.tracing
        received_ns = 0 if tracing is None else monotonic_ns()
        try:
            request = self._decode(message)
        except NereidError as error:
            statuses[error.code] += 1
            call.fail(Status(error.code), error.message)
            return
        request.deadline = call.deadline
        if call.metadata:
            traceparent = call.get("traceparent")
            if traceparent is not None:
                request.trace_context = trace_context.binary(traceparent)
            if self._forwarding is not None:
                self._forwarding.add(request, call.metadata)

        def on_response(response: InferResponse) -> None:
            error_status = response.error
            if error_status is None:
                statuses[0] += 1
                _reply(call, response, request.request_id)
            else:
                statuses[error_status.code] += 1
                rpc = "ModelInfer RPC " if error_status.message == DECOUPLED else ""
                call.fail(Status(error_status.code), rpc + error_status.message)

        if tracing is None:
            give_up = data_plane.infer(request, on_response).cancel
        else:
            give_up = tracing.infer(request, on_response, "grpc", received_ns).cancel

        def on_cancel() -> None:
            statuses[_early_end(call)] += 1
            give_up()

        call.on_cancel = on_cancel

    def _stream_infer(self, call: Call) -> None:
        if self._data_plane.draining:
            self.statuses[Status.UNAVAILABLE] += 1
            call.fail(Status.UNAVAILABLE, _SHUTTING_DOWN)
        else:
            self._streams.open(call)

    def begin_drain(self) -> None:
        """End the streams as soon as what came on them is answered."""
        self._streams.end(Status.UNAVAILABLE, _SHUTTING_DOWN)

    # --- control --------------------------------------------------------------------------------

    def _guard(self, respond: Respond) -> Callable[[Call, bytes], Awaitable[bytes]]:
        """respond, refused while the server ends, with errors in gRPC's terms."""

        async def response(message: bytes) -> bytes:
            if self._data_plane.draining:
                raise RpcError(Status.UNAVAILABLE, _SHUTTING_DOWN)
            try:
                return await respond(message)
            except NereidError as error:
                raise RpcError(Status(error.code), error.message) from error

        async def handle(call: Call, message: bytes) -> bytes:
            try:
                reply = await response(message)
            except asyncio.CancelledError:
                self.statuses[_early_end(call)] += 1
                raise
            except RpcError as error:
                self.statuses[error.status] += 1
                raise
            self.statuses[0] += 1
            return reply

        return handle

    def _pass_on(self, method: str) -> Respond:
        control = self._data_plane.control

        async def respond(message: bytes) -> bytes:
            return await control.call_bytes(method, message)

        return respond

    async def _server_live(self, message: bytes) -> bytes:
        _check(kserve_pb2.ServerLiveRequest, message)
        return kserve_pb2.ServerLiveResponse(live=self._data_plane.live).SerializeToString()

    async def _server_ready(self, message: bytes) -> bytes:
        _check(kserve_pb2.ServerReadyRequest, message)
        ready = await self._data_plane.ready()
        return kserve_pb2.ServerReadyResponse(ready=ready).SerializeToString()

    async def _server_metadata(self, message: bytes) -> bytes:
        _check(kserve_pb2.ServerMetadataRequest, message)
        return self._data_plane.server_metadata().SerializeToString()


def _early_end(call: Call) -> Status:
    """Why a call ends without an answer: its deadline, or else its client."""
    deadline = call.deadline
    if deadline is not None and deadline - monotonic() < _DEADLINE_ERROR_S:
        return Status.DEADLINE_EXCEEDED
    return Status.CANCELLED


def _check(kind: type[Message], message: bytes) -> None:
    """Refuse what is no message of this kind, though nothing in it would matter."""
    try:
        kind.FromString(message)
    except DecodeError as error:
        raise RpcError(Status.INTERNAL, "Unable to parse request") from error


def _reply(call: Call, response: InferResponse, request_id: str) -> None:
    if response.segment_name:
        call.reply_parts(infer_codec.parts_of(response, request_id))
    else:
        call.reply(infer_codec.encode(response, request_id))
