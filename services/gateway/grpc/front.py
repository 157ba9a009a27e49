"""gRPC in front of the data plane: the tables of handlers that either edge engine serves.

ModelInfer is one plain function and one callback; streams are infer_stream's; control methods pass
bytes through to the scheduler.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.core.errors import NereidError
from nereid.core.messages import DECOUPLED, Arrival
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
    from nereid.services.gateway.tensor_memory import MessageBuffer

    Respond = Callable[[bytes], Awaitable[bytes]]

_SERVICE: Final = "/inference.GRPCInferenceService/"
_SHUTTING_DOWN: Final = "GRPC server is shutting down and has stopped accepting new requests."
# Passed through to the scheduler as they are.
_PASSED_THROUGH: Final = (
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
# Clients round the deadline up for the wire, and cancel at their own.
_DEADLINE_ERROR_S: Final = 0.05


class GrpcFront:
    """Handlers of KServe's inference service, health and reflection."""

    def __init__(self, data_plane: DataPlane, forwarding: HeaderForwarding | None = None) -> None:
        self._data_plane = data_plane
        self._decoder = infer_codec.GrpcDecoder(data_plane.regions)
        # Calls by their status.
        self.statuses: dict[int, int] = defaultdict(int)
        # Makes metadata parameters; None: none is wanted.
        self._forwarding = forwarding
        self._streams = InferStreams(
            data_plane, self._decoder, self.statuses, _early_end_status, forwarding
        )

    def handlers(self) -> Handlers:
        """The table to serve."""
        asynchronous: dict[str, Respond] = {
            _SERVICE + "ServerLive": self._server_live,
            _SERVICE + "ServerReady": self._server_ready,
            _SERVICE + "ServerMetadata": self._server_metadata,
            health.CHECK: health.Health(self._data_plane.ready).check,
        }
        for method in _PASSED_THROUGH:
            asynchronous[_SERVICE + method] = self._pass_through(method)
        for method, respond in shared_memory.methods(self._data_plane.regions).items():
            asynchronous[_SERVICE + method] = respond
        return Handlers(
            unary={_SERVICE + "ModelInfer": self._infer},
            message_allocators={_SERVICE + "ModelInfer": self._message_buffer},
            async_unary={path: self._guard(respond) for path, respond in asynchronous.items()},
            stream={
                _SERVICE + "ModelStreamInfer": self._stream_infer,
                **reflection.handlers((_SERVICE.strip("/"), health.SERVICE)),
            },
            compressible=frozenset((_SERVICE + "ModelInfer", _SERVICE + "ModelStreamInfer")),
        )

    # --- infer ----------------------------------------------------------------------------------

    def _message_buffer(self, size_bytes: int, beginning: memoryview) -> MessageBuffer | None:
        """A buffer for a message that comes in pieces."""
        header_bytes = wire_format.first_tensor_offset(beginning)
        return self._data_plane.tensors.message_buffer(size_bytes, header_bytes)

    def _decode(self, message: bytes | MessageBuffer) -> InferRequest:
        if isinstance(message, bytes):
            return self._decoder.decode(message)
        return self._decoder.decode_buffer(message)

    def _infer(self, call: Call, message: bytes | MessageBuffer) -> None:
        data_plane, statuses = self._data_plane, self.statuses
        if data_plane.draining:
            statuses[Status.UNAVAILABLE] += 1
            call.fail(Status.UNAVAILABLE, _SHUTTING_DOWN)
            return
        received_ns = monotonic_ns() if data_plane.records_arrivals else 0
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
                self._forwarding.forward_headers(request, call.metadata)

        def on_response(response: InferResponse) -> None:
            error_status = response.error
            if error_status is None:
                statuses[0] += 1
                _reply(call, response, request.request_id)
            else:
                statuses[error_status.code] += 1
                rpc = "ModelInfer RPC " if error_status.message == DECOUPLED else ""
                call.fail(Status(error_status.code), rpc + error_status.message)

        if received_ns:
            request.arrival = Arrival("grpc", received_ns)
        # From here on the data plane counts the bytes.
        call.release()
        cancel = data_plane.infer(request, on_response).cancel

        def on_cancel() -> None:
            statuses[_early_end_status(call)] += 1
            cancel()

        call.on_cancel = on_cancel

    def _stream_infer(self, call: Call) -> None:
        if self._data_plane.draining:
            self.statuses[Status.UNAVAILABLE] += 1
            call.fail(Status.UNAVAILABLE, _SHUTTING_DOWN)
        else:
            self._streams.open_stream(call)

    def begin_drain(self) -> None:
        """Refuse new requests on streams, and end each when its pending requests are finished."""
        self._streams.end_streams(Status.UNAVAILABLE, _SHUTTING_DOWN)

    # --- control --------------------------------------------------------------------------------

    def _guard(self, respond: Respond) -> Callable[[Call, bytes], Awaitable[bytes]]:
        """respond, which is refused during shutdown, with errors as RpcError."""

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
                self.statuses[_early_end_status(call)] += 1
                raise
            except RpcError as error:
                self.statuses[error.status] += 1
                raise
            self.statuses[0] += 1
            return reply

        return handle

    def _pass_through(self, method: str) -> Respond:
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


def _early_end_status(call: Call) -> Status:
    """Why a call ends without a response: its deadline passed, or its client cancelled it."""
    deadline = call.deadline
    if deadline is not None and deadline - monotonic() < _DEADLINE_ERROR_S:
        return Status.DEADLINE_EXCEEDED
    return Status.CANCELLED


def _check(kind: type[Message], message: bytes) -> None:
    """Refuse a message that cannot be parsed, though none of its fields is used."""
    try:
        kind.FromString(message)
    except DecodeError as error:
        raise RpcError(Status.INTERNAL, "Unable to parse request") from error


def _reply(call: Call, response: InferResponse, request_id: str) -> None:
    if response.segment_name:
        call.reply_parts(infer_codec.parts_of(response, request_id))
    else:
        call.reply(infer_codec.encode(response, request_id))
