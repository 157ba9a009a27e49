"""The generate extension's routes: one JSON document, or server-sent events.

A request may have several responses. What generate's JSON means is generate_schema's business.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Final, Protocol

from nereid.core.errors import InvalidArgument, NereidError, http_status
from nereid.pb import kserve_pb2
from nereid.services.gateway.http.endpoints import generate_schema
from nereid.services.gateway.http.server.call import JSON, HttpCall, error_body
from nereid.services.gateway.load_reports import FORMAT_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import ErrorStatus, InferResponse
    from nereid.services.gateway.http.endpoints.infer_response import InferResponseEncoder
    from nereid.services.gateway.http.routes import Route
    from nereid.services.gateway.http.submission import InferSubmission
    from nereid.services.gateway.load_reports import LoadReports

EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"
# An event that clients ignore.
_COMMENT: Final = b":\n\n"
_IDENTITY: Final = "Unsupported content-encoding, only 'identity' is supported."
# The status of every failure of a model.
_MODEL_FAILED: Final = 400


class GenerateEndpoint:
    """The handlers of both routes."""

    def __init__(
        self, submission: InferSubmission, encoder: InferResponseEncoder, loads: LoadReports
    ) -> None:
        self._control = submission.data_plane.control
        self._submit_request = submission.submit_request
        self._encoder = encoder
        self._loads = loads

    async def handle(self, call: HttpCall, route: Route) -> None:
        """Respond with one document."""
        await self._generate(call, route, _SingleDocument)

    async def handle_stream(self, call: HttpCall, route: Route) -> None:
        """Respond with events."""
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
        request = generate_schema.decode_request(call.body, route.model, route.version, metadata)
        load_format = call.headers.get(FORMAT_HEADER)
        extra = b"" if load_format is None else await self._loads.line(load_format)
        writer = make_writer(call, extra)

        def on_response(response: InferResponse) -> None:
            if response.head or response.error is not None:
                self._write_response(writer, response, request.request_id)
            if not response.more:
                writer.finish()

        request.accepts_many = True
        submitted = self._submit_request(call, request, on_response)
        if not call.done:
            call.on_flow_control = lambda paused: submitted.set_flow(paused=paused)

    def _write_response(
        self, writer: _ResponseWriter, response: InferResponse, request_id: str
    ) -> None:
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


class _ResponseWriter(Protocol):
    """How the responses to one request reach the client."""

    def reject(self, error_status: ErrorStatus) -> None:
        """The request was not accepted: there will be no documents."""

    def write_document(self, status: int, body: bytes) -> None: ...

    def finish(self) -> None:
        """There are no more documents."""


class _SingleDocument:
    """Writes the only document once it is known to be the only one."""

    def __init__(self, call: HttpCall, extra: bytes) -> None:
        self._call = call
        self._extra = extra
        self._document: tuple[int, bytes] | None = None
        self._count = 0

    def reject(self, error_status: ErrorStatus) -> None:
        self._call.fail(http_status(error_status.code), error_status.message)

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
    """Writes each document as an event at once; the first one's status is the response's."""

    def __init__(self, call: HttpCall, extra: bytes) -> None:
        self._call = call
        self._extra = extra
        self._begun = False

    def reject(self, error_status: ErrorStatus) -> None:
        self._call.fail(http_status(error_status.code), error_status.message)

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
