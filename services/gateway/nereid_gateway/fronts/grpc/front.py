"""gRPC in front of the data plane: the tables of handlers that either edge engine serves.

ModelInfer is one plain function and one callback; streams are infer_stream's; control methods pass
bytes through to the scheduler.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from functools import partial
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import DecodeError

from nereid.core.errors import NereidError
from nereid.core.wire.messages import DECOUPLED, Arrival
from nereid.pb import kserve_pb2
from nereid.rpc import Handlers, RpcError, Status
from nereid_gateway.core import trace_context
from nereid_gateway.core.access.api_groups import HEALTH_CHECK
from nereid_gateway.core.access.principal import Principal
from nereid_gateway.core.response_timings import HEADER, start_timer
from nereid_gateway.core.retry_hints import drain_trailers, retry_trailers
from nereid_gateway.fronts.grpc import (
    health,
    infer_codec,
    load_request,
    reflection,
    shared_memory,
    wire_format,
)
from nereid_gateway.fronts.grpc.bounded_decoder import BoundedDecoder
from nereid_gateway.fronts.grpc.infer_stream import InferStreams
from nereid_gateway.plane.decoding.limits import LARGE_BYTES, MAX_CONTROL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable
    from typing import Any

    from google.protobuf.message import Message

    from nereid.core.wire.messages import ErrorStatus, InferRequest, InferResponse
    from nereid.rpc import Call
    from nereid_gateway.core.infer_step import Infer
    from nereid_gateway.core.response_timings import ResponseTimer
    from nereid_gateway.core.retry_hints import Trailers
    from nereid_gateway.core.tensors.tensor_memory import MessageBuffer
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.header_forwarding import HeaderForwarding

    Respond = Callable[[bytes], Coroutine[Any, Any, bytes]]

_SERVICE: Final = "/inference.GRPCInferenceService/"
_SHUTTING_DOWN: Final = "GRPC server is shutting down and has stopped accepting new requests."
_LOAD: Final = "RepositoryModelLoad"
# Passed through to the scheduler as they are.
_PASSED_THROUGH: Final = (
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelUnload",
    "TraceSetting",
    "LogSettings",
)
# This gateway knows them by itself; others wait for their turn, those about readiness beside the
# rest.
_AT_ONCE: Final = frozenset({_SERVICE + "ServerLive", _SERVICE + "ServerMetadata"})
_PROBES: Final = frozenset({HEALTH_CHECK, _SERVICE + "ServerReady", _SERVICE + "ModelReady"})
# These go on if the client disconnects.
_GO_ON: Final = frozenset({_SERVICE + _LOAD, _SERVICE + "RepositoryModelUnload"})
# Clients round the deadline up for the wire, and cancel at their own.
_DEADLINE_ERROR_S: Final = 0.05


class ControlHandler(Protocol):
    """Serves a control call. principal: whose it is, where clients have credentials."""

    async def __call__(self, call: Call, message: bytes, principal: Hashable = None) -> bytes: ...


class GrpcFront:
    """Handlers of KServe's inference service, health and reflection."""

    def __init__(self, data_plane: DataPlane, forwarding: HeaderForwarding | None = None) -> None:
        self._data_plane = data_plane
        self._decoder = BoundedDecoder(data_plane)
        # Of requests that take longer to decode.
        self._tasks: set[asyncio.Task[None]] = set()
        # Control calls by their paths, for whoever knows their principals.
        self.controls: dict[str, ControlHandler] = {}
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
            HEALTH_CHECK: health.Health(self._data_plane.ready).check,
        }
        for method in _PASSED_THROUGH:
            asynchronous[_SERVICE + method] = self._pass_through(method)
        for method, respond in shared_memory.methods(self._data_plane.regions).items():
            asynchronous[_SERVICE + method] = respond
        for path, respond in asynchronous.items():
            self.controls[path] = self._control(path, respond)
        self.controls[_SERVICE + _LOAD] = self._load
        return Handlers(
            unary={_SERVICE + "ModelInfer": self.infer},
            message_allocators={_SERVICE + "ModelInfer": self._message_buffer},
            async_unary=dict(self.controls),
            stream={
                _SERVICE + "ModelStreamInfer": self.stream_infer,
                **reflection.handlers((_SERVICE.strip("/"), health.SERVICE)),
            },
            compressible=frozenset((_SERVICE + "ModelInfer", _SERVICE + "ModelStreamInfer")),
        )

    # --- infer ----------------------------------------------------------------------------------

    def _message_buffer(self, size_bytes: int, beginning: memoryview) -> MessageBuffer | None:
        """A buffer for a message that comes in pieces."""
        header_bytes = wire_format.first_tensor_offset(beginning)
        return self._data_plane.tensors.message_buffer(size_bytes, header_bytes)

    def infer(self, call: Call, message: bytes | MessageBuffer, infer: Infer | None = None) -> None:
        """Serve one ModelInfer. infer: in place of the data plane's."""
        data_plane, statuses = self._data_plane, self.statuses
        is_timed = bool(call.metadata) and call.get(HEADER) is not None
        received_ns = monotonic_ns() if is_timed or data_plane.records_arrivals else 0
        try:
            request = self._decoder.decode_now(message)
        except NereidError as error:
            statuses[error.code] += 1
            call.fail(Status(error.code), error.message, retry_trailers(error))
            return
        infer = infer or data_plane.infer
        if request is None:
            work = self._decode_and_submit(call, message, received_ns, infer)
            self._start_decoding(call, work)
        else:
            self._submit(call, request, received_ns, infer)

    def _start_decoding(self, call: Call, work: Coroutine[None, None, None]) -> None:
        """Decode a message in a task, which a cancelled call ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        call.on_cancel = partial(self._end_early, call, task.cancel)

    async def _decode_and_submit(
        self, call: Call, message: bytes | MessageBuffer, received_ns: int, infer: Infer
    ) -> None:
        try:
            request = await self._decoder.decode_later(message, call)
        except NereidError as error:
            self.statuses[error.code] += 1
            call.fail(Status(error.code), error.message, retry_trailers(error))
        except RpcError as refusal:
            self.statuses[refusal.status] += 1
            call.fail_with(refusal)
        except Exception as unknown:
            self.statuses[Status.INTERNAL] += 1
            call.fail_with(unknown)
        else:
            self._submit(call, request, received_ns, infer)

    def _submit(self, call: Call, request: InferRequest, received_ns: int, infer: Infer) -> None:
        request.deadline = call.deadline
        request.sender = call.account
        if call.metadata:
            traceparent = call.get("traceparent")
            if traceparent is not None:
                state = call.get("tracestate")
                request.trace_context = trace_context.binary(traceparent, state)
            if self._forwarding is not None:
                self._forwarding.forward_headers(request, call.metadata)
        data_plane = self._data_plane
        if data_plane.records_arrivals:
            request.arrival = Arrival("grpc", received_ns, call)
        respond = partial(self._respond, call, request)
        asked = call.get(HEADER) if call.metadata else None
        if (asked is not None or data_plane.times_all) and data_plane.timed.include(asked):
            timer = start_timer(request, received_ns)
            respond = partial(self._respond_timed, call, request, timer)
        # From here on the data plane counts the bytes.
        call.release()
        handle = infer(request, respond)
        call.on_cancel = partial(self._end_early, call, handle.cancel)

    def _respond(self, call: Call, request: InferRequest, response: InferResponse) -> None:
        error_status = response.error
        if error_status is None:
            self.statuses[0] += 1
            _reply(call, response, request.request_id)
        else:
            self._fail(call, error_status)

    def _respond_timed(
        self, call: Call, request: InferRequest, timer: ResponseTimer, response: InferResponse
    ) -> None:
        """As _respond(), of a request whose response says where its time went."""
        timer.record(response)
        error_status = response.error
        if error_status is None:
            self.statuses[0] += 1
            call.reply_parts(infer_codec.parts_of(response, request.request_id), timer.trailers())
        else:
            self._fail(call, error_status, timer.trailers())

    def _fail(self, call: Call, error_status: ErrorStatus, trailers: Trailers = ()) -> None:
        self.statuses[error_status.code] += 1
        rpc = "ModelInfer RPC " if error_status.message == DECOUPLED else ""
        message = rpc + error_status.message
        trailers = (*retry_trailers(error_status), *trailers)
        call.fail(Status(error_status.code), message, trailers)

    def _end_early(self, call: Call, cancel: Callable[[], object]) -> None:
        """The call ends without a response."""
        self.statuses[_early_end_status(call)] += 1
        cancel()

    def stream_infer(self, call: Call, infer: Infer | None = None) -> None:
        """Serve one ModelStreamInfer. infer: in place of the data plane's."""
        if self._data_plane.stopping:
            self.statuses[Status.UNAVAILABLE] += 1
            call.fail(Status.UNAVAILABLE, _SHUTTING_DOWN, drain_trailers())
        else:
            self._streams.open_stream(call, infer or self._data_plane.infer)

    def end_streams(self) -> None:
        """Refuse new requests on streams, and end each when its pending requests are finished."""
        self._streams.end_streams(Status.UNAVAILABLE, _SHUTTING_DOWN)

    # --- control --------------------------------------------------------------------------------

    def _control(
        self, path: str, respond: Respond, max_bytes: int = MAX_CONTROL_BYTES
    ) -> ControlHandler:
        """respond, in its turn, which is refused during shutdown, with errors as RpcError."""

        async def response(call: Call, message: bytes, principal: Hashable) -> bytes:
            if self._data_plane.stopping:
                raise RpcError(Status.UNAVAILABLE, _SHUTTING_DOWN, drain_trailers())
            if len(message) > max_bytes:
                raise RpcError(
                    Status.RESOURCE_EXHAUSTED,
                    f"a message of {len(message)} bytes is more than the {max_bytes} that a control"
                    " call may have",
                )
            try:
                if path in _AT_ONCE:
                    return await respond(message)
                data_plane, goes_on = self._data_plane, path in _GO_ON
                queue = data_plane.probe_queue if path in _PROBES else data_plane.control_queue
                work = partial(respond, message)
                return await queue.run(
                    call.peer, work, principal, account=call.account, goes_on=goes_on
                )
            except NereidError as error:
                trailers = retry_trailers(error)
                raise RpcError(Status(error.code), error.message, trailers) from error

        async def handle(call: Call, message: bytes, principal: Hashable = None) -> bytes:
            try:
                reply = await response(call, message, principal)
            except asyncio.CancelledError:
                self.statuses[_early_end_status(call)] += 1
                raise
            except RpcError as error:
                self.statuses[error.status] += 1
                raise
            self.statuses[0] += 1
            return reply

        return handle

    async def _load(self, call: Call, message: bytes, principal: Hashable = None) -> bytes:
        """Load a model; the files in a large message are gone through by a decoder process."""

        async def respond(message: bytes) -> bytes:
            if len(message) > LARGE_BYTES:
                _, (message,) = await self._data_plane.decoders.run(
                    call.peer, load_request.rewrite_job, blobs=[message]
                )
            if isinstance(principal, Principal):
                message = principal.with_permitted_steps(message)
            return await self._data_plane.control.call_bytes(_LOAD, message)

        handle = self._control(_SERVICE + _LOAD, respond, sys.maxsize)
        return await handle(call, message, principal)

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
