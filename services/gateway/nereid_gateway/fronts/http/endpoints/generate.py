"""Routes generate and generate_stream: the response is one JSON document or server-sent events."""

from __future__ import annotations

from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid.core.errors import InvalidArgument, NereidError, http_status
from nereid.pb import kserve_pb2
from nereid_gateway.core.retry_hints import retry_line
from nereid_gateway.fronts.http.endpoints import generate_schema
from nereid_gateway.plane.control.load_reports import FORMAT_HEADER
from nereid_gateway.plane.decoding.limits import LARGE_BYTES
from nereid_gateway.server.call import JSON, HttpCall, error_body

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nereid.core.wire.messages import ErrorStatus, InferResponse
    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.core.routes import Route
    from nereid_gateway.fronts.http.inference.infer_response import InferResponseEncoder
    from nereid_gateway.fronts.http.submission import InferSubmission
    from nereid_gateway.plane.control.load_reports import LoadReports
    from nereid_gateway.server.call_tasks import CallTasks

EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"
_COMMENT: Final = b":\n\n"
_IDENTITY: Final = "Unsupported content-encoding, only 'identity' is supported."
_MODEL_FAILED: Final = 400


class GenerateEndpoint:
    """Handlers of the routes generate and generate_stream."""

    def __init__(
        self,
        submission: InferSubmission,
        encoder: InferResponseEncoder,
        loads: LoadReports,
        tasks: CallTasks,
        max_bytes: int,
    ) -> None:
        """max_bytes: limit of the inputs of a request."""
        self._data_plane = submission.data_plane
        self._control = submission.data_plane.control
        self._submit_request = submission.submit_request
        self._encoder = encoder
        self._loads = loads
        self._tasks = tasks
        self._max_bytes = max_bytes

    async def handle(self, call: HttpCall, route: Route) -> None:
        """Respond with a single document."""
        await self._generate(call, route, _SingleDocument)

    async def handle_stream(self, call: HttpCall, route: Route) -> None:
        """Respond with server-sent events."""
        await self._generate(call, route, _EventStream)

    async def _generate(
        self,
        call: HttpCall,
        route: Route,
        make_writer: Callable[[HttpCall, bytes], _ResponseWriter],
    ) -> None:
        call.received_ns = monotonic_ns()
        metadata = await self._control.call(
            "ModelMetadata",
            kserve_pb2.ModelMetadataRequest(name=route.model, version=route.version),
            kserve_pb2.ModelMetadataResponse,
        )
        if call.headers.get(b"content-encoding", b"identity") != b"identity":
            raise InvalidArgument(_IDENTITY)
        request: ClientRequest
        request, payloads = await self._data_plane.decoding.run_text_job(
            call.peer,
            call.body,
            generate_schema.decode_job,
            route.model,
            route.version,
            metadata.SerializeToString(),
            self._max_bytes,
        )
        request.payloads = list(payloads)
        await self._data_plane.tensors.stage_in_thread(request)
        load_format = call.headers.get(FORMAT_HEADER)
        extra = b"" if load_format is None else await self._loads.line(load_format)
        writer = make_writer(call, extra)
        on_response = _OrderedDocuments(self, call, writer, request.request_id).on_response

        request.accepts_many = True
        submitted = self._submit_request(call, request, on_response)
        if not call.done:
            call.on_flow_control = lambda paused: submitted.set_flow(paused=paused)

    def write_response(
        self, writer: _ResponseWriter, response: InferResponse, request_id: str
    ) -> None:
        """Write the outputs in a response, or its error."""
        error_status = response.error
        if error_status is not None and not error_status.accepted:
            writer.reject(error_status)
            return
        if error_status is not None:
            writer.write_document(_MODEL_FAILED, error_body(error_status.message))
            return
        try:
            head = self._encoder.parse_head(response.head)
            body = generate_schema.encode_response(response, head, request_id)
        except NereidError as error:
            writer.write_document(_MODEL_FAILED, error_body(error.message))
        else:
            writer.write_document(200, body)

    async def write_large(
        self, call: HttpCall, writer: _ResponseWriter, response: InferResponse, request_id: str
    ) -> None:
        """Write a response without error. A decoder process encodes it."""
        payloads: list[Any] = response.payloads
        try:
            decoders = self._data_plane.decoders
            _, (body,) = await decoders.run(
                call.peer,
                generate_schema.encode_job,
                self._encoder.parse_head(response.head),
                request_id,
                decoders.max_text_bytes,
                blobs=payloads,
            )
        except NereidError as error:
            writer.write_document(_MODEL_FAILED, error_body(error.message))
        else:
            writer.write_document(200, body)

    def spawn(self, call: HttpCall, work: Coroutine[Any, Any, None]) -> None:
        """Run work as a task. If the client disconnects, cancel the task and the request."""
        cancel_request = call.on_cancel
        self._tasks.spawn(call, work)
        cancel_task = call.on_cancel

        def cancel() -> None:
            for cancel_one in (cancel_task, cancel_request):
                if cancel_one is not None:
                    cancel_one()

        if not call.done:
            call.on_cancel = cancel


class _OrderedDocuments:
    def __init__(
        self, endpoint: GenerateEndpoint, call: HttpCall, writer: _ResponseWriter, request_id: str
    ) -> None:
        self._endpoint = endpoint
        self._call = call
        self._writer = writer
        self._request_id = request_id
        self._waiting: deque[InferResponse] = deque()
        self._encoding = False

    def on_response(self, response: InferResponse) -> None:
        if self._encoding:
            self._waiting.append(response)
        elif _is_large(response):
            self._encoding = True
            self._call.control_flow(paused=True)
            self._waiting.append(response)
            self._endpoint.spawn(self._call, self._write_waiting())
        else:
            self._write(response)

    async def _write_waiting(self) -> None:
        while self._waiting:
            response = self._waiting.popleft()
            if not _is_large(response):
                self._write(response)
                continue
            await self._endpoint.write_large(self._call, self._writer, response, self._request_id)
            if not response.more:
                self._writer.finish()
        self._encoding = False
        self._call.control_flow(paused=False)

    def _write(self, response: InferResponse) -> None:
        if response.head or response.error is not None:
            self._endpoint.write_response(self._writer, response, self._request_id)
        if not response.more:
            self._writer.finish()


def _is_large(response: InferResponse) -> bool:
    payloads: list[Any] = response.payloads
    return response.error is None and sum(map(len, payloads)) > LARGE_BYTES


class _ResponseWriter(Protocol):
    def reject(self, error_status: ErrorStatus) -> None:
        """Respond with the error of a request that was not accepted and so has no documents."""

    def write_document(self, status: int, body: bytes) -> None: ...

    def finish(self) -> None:
        """Complete the response after its last document."""


class _SingleDocument:
    def __init__(self, call: HttpCall, extra: bytes) -> None:
        self._call = call
        self._extra = extra
        self._document: tuple[int, bytes] | None = None
        self._count = 0

    def reject(self, error_status: ErrorStatus) -> None:
        extra = retry_line(error_status)
        self._call.fail(http_status(error_status.code), error_status.message, extra=extra)

    def write_document(self, status: int, body: bytes) -> None:
        self._count += 1
        self._document = status, body

    def finish(self) -> None:
        if self._document is None or self._count > 1:
            self._call.fail(200, generate_schema.NOT_ONE_RESPONSE)
        else:
            status, body = self._document
            self._call.respond(status, (body,), JSON, self._extra)


class _EventStream:
    def __init__(self, call: HttpCall, extra: bytes) -> None:
        self._call = call
        self._extra = extra
        self._begun = False

    def reject(self, error_status: ErrorStatus) -> None:
        extra = retry_line(error_status)
        self._call.fail(http_status(error_status.code), error_status.message, extra=extra)

    def write_document(self, status: int, body: bytes) -> None:
        self._ensure_begun(status)
        self._call.send_chunk(b"data: %b\n\n" % body)

    def finish(self) -> None:
        self._ensure_begun(200)
        self._call.end_stream()

    def _ensure_begun(self, status: int) -> None:
        if not self._begun:
            self._begun = True
            self._call.begin_stream(status, EVENT_STREAM, self._extra)
            self._call.keepalive_chunk = _COMMENT
