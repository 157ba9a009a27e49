"""Front of the gRPC port: the handlers of core/grpc_methods.py's methods, for both engines."""

# layout: compiled

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from functools import partial
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import DecodeError

from nereid.core.errors import NereidError
from nereid.core.wire.messages import DECOUPLED
from nereid.pb import kserve_pb2
from nereid.rpc import Handlers, RpcError, Status
from nereid_gateway.core import trace_context
from nereid_gateway.core.access.principal import Principal
from nereid_gateway.core.grpc_methods import (
    HEALTH_SERVICE,
    INFERENCE_SERVICE,
    LOAD,
    METHODS,
    UNLOAD,
    MethodKind,
)
from nereid_gateway.core.request_record import RequestRecord
from nereid_gateway.core.response_timings import HEADER, SERVER_TIMING, server_timing
from nereid_gateway.core.retry_hints import drain_trailers, retry_trailers
from nereid_gateway.fronts.bound_handlers import bind_handlers
from nereid_gateway.fronts.grpc import (
    health,
    infer_codec,
    load_request,
    reflection,
    shared_memory,
    wire_format,
)
from nereid_gateway.fronts.grpc.bounded_decoder import BoundedDecoder
from nereid_gateway.fronts.grpc.infer_codec import GrpcMessage
from nereid_gateway.fronts.grpc.infer_stream import InferStreams
from nereid_gateway.plane.decoding.limits import LARGE_BYTES, MAX_CONTROL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable
    from typing import Any

    from google.protobuf.message import Message

    from nereid.core.wire.messages import ErrorStatus, InferResponse
    from nereid.rpc import Call, StreamHandler, UnaryHandler
    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.core.grpc_methods import Method
    from nereid_gateway.core.infer_step import Infer
    from nereid_gateway.core.retry_hints import Trailers
    from nereid_gateway.core.tensors.tensor_memory import MessageBuffer
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.header_forwarding import HeaderForwarding

    Respond = Callable[[bytes], Coroutine[Any, Any, bytes]]

_SHUTTING_DOWN: Final = "GRPC server is shutting down and has stopped accepting new requests."
# A client sends its deadline rounded up, but cancels at the exact deadline. This is the maximum
# difference.
_DEADLINE_ERROR_S: Final = 0.05


class ControlHandler(Protocol):
    """Handler of a control call. principal: the caller, or None if clients have no credentials."""

    async def __call__(self, call: Call, message: bytes, principal: Hashable = None) -> bytes:
        """Return the serialised response."""


class GrpcFront:
    """Handlers of KServe's inference service and of the health and reflection services."""

    def __init__(self, data_plane: DataPlane, forwarding: HeaderForwarding | None = None) -> None:
        self._data_plane = data_plane
        self._decoder = BoundedDecoder(data_plane)
        self._tasks: set[asyncio.Task[None]] = set()
        # Control handlers by path. The guard calls them, because it knows the caller's principal.
        self.controls: dict[str, ControlHandler] = {}
        self.statuses: dict[int, int] = defaultdict(int)
        self._forwarding = forwarding
        self._streams = InferStreams(
            data_plane, self._decoder, self.statuses, _early_end_status, forwarding
        )

    def handlers(self) -> Handlers:
        """Return the handlers of all methods, keyed by their paths."""
        data_plane = self._data_plane
        groups = (
            self,
            health.Health(data_plane.ready, lambda: data_plane.draining),
            shared_memory.SharedMemoryMethods(data_plane.regions),
        )
        bound = bind_handlers((method.handler for method in METHODS), groups)
        unary: dict[str, UnaryHandler] = {}
        streams: dict[str, StreamHandler] = {}
        for method in METHODS:
            path = method.path
            if method.kind is MethodKind.INFER:
                unary[path] = bound[method.handler]
            elif method.kind is MethodKind.STREAM:
                streams[path] = bound[method.handler]
            elif method.kind is MethodKind.CONTROL_CALL:
                self.controls[path] = bound[method.handler]
            else:
                passed_through = partial(self._pass_through, method.name)
                respond = bound[method.handler] if method.handler else passed_through
                self.controls[path] = self._control(method, respond)
        return Handlers(
            unary=unary,
            message_allocators=dict.fromkeys(unary, self._message_buffer),
            async_unary=dict(self.controls),
            stream={**streams, **reflection.handlers((INFERENCE_SERVICE, HEALTH_SERVICE))},
            compressible=frozenset((*unary, *streams)),
        )

    def _message_buffer(self, size_bytes: int, beginning: memoryview) -> MessageBuffer | None:
        header_bytes = wire_format.first_tensor_offset(beginning)
        return self._data_plane.tensors.message_buffer(size_bytes, header_bytes)

    def infer(self, call: Call, data: bytes | MessageBuffer, infer: Infer | None = None) -> None:
        """Serve a call of ModelInfer. infer: submits the request, by default to the data plane."""
        data_plane, statuses = self._data_plane, self.statuses
        is_timed = bool(call.metadata) and call.get(HEADER) is not None
        received_ns = monotonic_ns() if is_timed or data_plane.records_all else 0
        try:
            decoded = self._decoder.decode_now(data)
        except NereidError as error:
            statuses[error.code] += 1
            call.fail(Status(error.code), error.message, retry_trailers(error))
            return
        infer = infer or data_plane.infer
        if not isinstance(decoded, GrpcMessage):
            self._submit(call, decoded, received_ns, infer)
            return
        work = self._decode_and_submit(call, decoded, received_ns, infer)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        call.on_cancel = partial(self._end_early, call, task.cancel)

    async def _decode_and_submit(
        self, call: Call, message: GrpcMessage, received_ns: int, infer: Infer
    ) -> None:
        try:
            request = await self._decoder.decode(message, call)
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

    def _submit(self, call: Call, request: ClientRequest, received_ns: int, infer: Infer) -> None:
        request.deadline = call.deadline
        request.sender = call.account
        if call.metadata:
            request.headers = call.metadata
            traceparent = call.get("traceparent")
            if traceparent is not None:
                state = call.get("tracestate")
                request.trace_context = trace_context.binary(traceparent, state)
            if self._forwarding is not None:
                self._forwarding.forward_headers(request, call.metadata)
        data_plane = self._data_plane
        timing_header = call.get(HEADER) if call.metadata else None
        is_timed = (timing_header is not None or data_plane.times_all) and data_plane.timed.include(
            timing_header
        )
        timed: RequestRecord | None = None
        if is_timed or data_plane.records_all:
            record = request.record = RequestRecord("grpc", received_ns, call)
            if is_timed:
                request.wants_timings = True
                timed = record
        # The data plane charges the bytes from here on.
        call.release()
        handle = infer(request, partial(self._respond, call, request.request_id, timed))
        call.on_cancel = partial(self._end_early, call, handle.cancel)

    def _respond(
        self, call: Call, request_id: str, timed: RequestRecord | None, response: InferResponse
    ) -> None:
        """Respond to a call. timed: the record of a request whose response has timings."""
        trailers: Trailers = ()
        if timed is not None:
            trailers = ((SERVER_TIMING, server_timing(timed)),)
        response = infer_codec.checked_size(response, request_id)
        error_status = response.error
        if error_status is not None:
            self._fail(call, error_status, trailers)
            return
        self.statuses[0] += 1
        if response.segment_name or trailers:
            call.reply_parts(infer_codec.parts_of(response, request_id), trailers)
        else:
            call.reply(infer_codec.encode(response, request_id))

    def _fail(self, call: Call, error_status: ErrorStatus, trailers: Trailers) -> None:
        self.statuses[error_status.code] += 1
        rpc = "ModelInfer RPC " if error_status.message == DECOUPLED else ""
        message = rpc + error_status.message
        trailers = (*retry_trailers(error_status), *trailers)
        call.fail(Status(error_status.code), message, trailers)

    def _end_early(self, call: Call, cancel: Callable[[], object]) -> None:
        self.statuses[_early_end_status(call)] += 1
        cancel()

    def stream_infer(self, call: Call, infer: Infer | None = None) -> None:
        """Serve a call of ModelStreamInfer. infer: by default, the data plane's."""
        if self._data_plane.stopping:
            self.statuses[Status.UNAVAILABLE] += 1
            call.fail(Status.UNAVAILABLE, _SHUTTING_DOWN, drain_trailers())
        else:
            self._streams.open_stream(call, infer or self._data_plane.infer)

    def end_streams(self) -> None:
        """Refuse new requests on streams. Each stream ends when its pending requests have ended."""
        self._streams.end_streams(Status.UNAVAILABLE, _SHUTTING_DOWN)

    def _control(
        self, method: Method, respond: Respond, max_bytes: int = MAX_CONTROL_BYTES
    ) -> ControlHandler:
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
                if method.at_once:
                    return await respond(message)
                data_plane = self._data_plane
                queue = data_plane.probe_queue if method.is_probe else data_plane.control_queue
                work = partial(respond, message)
                return await queue.run(
                    call.peer,
                    work,
                    principal,
                    account=call.account,
                    survives_disconnect=method.survives_disconnect,
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

    async def load(self, call: Call, message: bytes, principal: Hashable = None) -> bytes:
        """Load a model. A decoder process inspects a large message, which has the model's files."""

        async def respond(message: bytes) -> bytes:
            if len(message) > LARGE_BYTES:
                _, (message,) = await self._data_plane.decoders.run(
                    call.peer, load_request.rewrite_job, blobs=[message]
                )
            if isinstance(principal, Principal):
                message = principal.with_requester(message)
            return await self._data_plane.control.call_bytes(LOAD.name, message)

        handle = self._control(LOAD, respond, sys.maxsize)
        return await handle(call, message, principal)

    async def unload(self, call: Call, message: bytes, principal: Hashable = None) -> bytes:
        """Unload a model."""
        respond = partial(self._pass_through, UNLOAD.name)
        if isinstance(principal, Principal):
            message = principal.with_requester(message)
        return await self._control(UNLOAD, respond)(call, message, principal)

    async def _pass_through(self, name: str, message: bytes) -> bytes:
        return await self._data_plane.control.call_bytes(name, message)

    async def server_live(self, message: bytes) -> bytes:
        """Return a serialised ServerLiveResponse."""
        _check(kserve_pb2.ServerLiveRequest, message)
        return kserve_pb2.ServerLiveResponse(live=self._data_plane.live).SerializeToString()

    async def server_ready(self, message: bytes) -> bytes:
        """Return a serialised ServerReadyResponse."""
        _check(kserve_pb2.ServerReadyRequest, message)
        ready = await self._data_plane.ready()
        return kserve_pb2.ServerReadyResponse(ready=ready).SerializeToString()

    async def server_metadata(self, message: bytes) -> bytes:
        """Return a serialised ServerMetadataResponse."""
        _check(kserve_pb2.ServerMetadataRequest, message)
        return self._data_plane.server_metadata().SerializeToString()


def _early_end_status(call: Call) -> Status:
    deadline = call.deadline
    if deadline is not None and deadline - monotonic() < _DEADLINE_ERROR_S:
        return Status.DEADLINE_EXCEEDED
    return Status.CANCELLED


def _check(kind: type[Message], message: bytes) -> None:
    try:
        kind.FromString(message)
    except DecodeError as error:
        raise RpcError(Status.INTERNAL, "Unable to parse request") from error
