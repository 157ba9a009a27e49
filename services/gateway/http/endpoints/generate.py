"""The generate extension over HTTP: one JSON document, or server-sent events.

A request may have several replies, of which the last is the end; whoever writes them here is told
of each and of the end. What generate's JSON means is generate_schema's.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Final, Protocol

from nereid.core.errors import InvalidArgument, NereidError, http_status
from nereid.pb import kserve_pb2
from nereid.services.gateway.http.endpoints import generate_schema
from nereid.services.gateway.http.json.parser import error_body
from nereid.services.gateway.http.routes import Kind, Route
from nereid.services.gateway.http.server.call import JSON, HttpCall
from nereid.services.gateway.load_reports import FORMAT_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import ErrorStatus, InferRequest, InferResponse
    from nereid.services.gateway.control import Control
    from nereid.services.gateway.http.endpoints.infer_response import HttpEncoder
    from nereid.services.gateway.infer_chain import RequestHandle
    from nereid.services.gateway.load_reports import LoadReports

    Submit = Callable[[HttpCall, InferRequest, Callable[[InferResponse], None]], RequestHandle]

EVENTS: Final = b"text/event-stream; charset=utf-8"
# An event that clients pass over.
_COMMENT: Final = b":\n\n"
_IDENTITY: Final = "Unsupported content-encoding, only 'identity' is supported."
# A model's failure, whichever it is.
_FAILED: Final = 400


class HttpGenerate:
    """Answers calls of both routes."""

    def __init__(
        self, control: Control, encoder: HttpEncoder, loads: LoadReports, submit: Submit
    ) -> None:
        self._control = control
        self._encoder = encoder
        self._loads = loads
        self._submit = submit

    async def response(self, call: HttpCall, route: Route) -> None:
        """Submit what the call asks for; its replies are written as they come.

        Raises:
            NereidError: the model is unknown, or the body does not fit it.
        """
        call.received_ns = monotonic_ns()
        metadata = await self._control.call(
            "ModelMetadata",
            kserve_pb2.ModelMetadataRequest(name=route.name, version=route.version),
            kserve_pb2.ModelMetadataResponse,
        )
        if call.headers.get(b"content-encoding", b"identity") != b"identity":
            raise InvalidArgument(_IDENTITY)
        request = generate_schema.read(call.body, route.name, route.version, metadata)
        form = _Events if route.kind is Kind.GENERATE_STREAM else _Document
        load_form = call.headers.get(FORMAT_HEADER)
        extra = b"" if load_form is None else await self._loads.line(load_form)
        replies: _Replies = form(call, extra)

        def on_response(response: InferResponse) -> None:
            if response.head or response.error is not None:
                self._reply(replies, response, request.request_id)
            if not response.more:
                replies.end()

        request.accepts_many = True
        under_way = self._submit(call, request, on_response)
        if not call.done:
            call.on_pace = lambda paused: under_way.set_flow(paused=paused)

    def _reply(self, replies: _Replies, response: InferResponse, request_id: str) -> None:
        error_status = response.error
        if error_status is not None and not error_status.accepted:
            replies.refuse(error_status)
            return
        if error_status is not None:
            replies.add(_FAILED, error_body(error_status.message))
            return
        try:
            body = generate_schema.write(
                response, self._encoder.describe(response.head), request_id
            )
        except NereidError as error:
            replies.add(_FAILED, error_body(error.message))
        else:
            replies.add(200, body)


class _Replies(Protocol):
    """How the replies to one request reach the client."""

    def refuse(self, error_status: ErrorStatus) -> None:
        """The request was not accepted: there will be no reply."""

    def add(self, status: int, body: bytes) -> None:
        """One reply."""

    def end(self) -> None:
        """There are no more."""


class _Document:
    """The one reply that there has to be, once it is known to be the only one."""

    def __init__(self, call: HttpCall, extra: bytes) -> None:
        self._call = call
        self._extra = extra
        self._only: tuple[int, bytes] | None = None
        self._count = 0

    def refuse(self, error_status: ErrorStatus) -> None:
        self._call.fail(http_status(error_status.code), error_status.message)

    def add(self, status: int, body: bytes) -> None:
        self._count += 1
        self._only = status, body

    def end(self) -> None:
        if self._only is None or self._count > 1:
            self._call.fail(200, generate_schema.ONE_REPLY)
        else:
            status, body = self._only
            self._call.respond(status, (body,), JSON, self._extra)


class _Events:
    """Each reply as an event at once; the first one's status is the answer's."""

    def __init__(self, call: HttpCall, extra: bytes) -> None:
        self._call = call
        self._extra = extra
        self._begun = False

    def refuse(self, error_status: ErrorStatus) -> None:
        self._call.fail(http_status(error_status.code), error_status.message)

    def add(self, status: int, body: bytes) -> None:
        self._begin(status)
        self._call.send(b"data: %b\n\n" % body)

    def end(self) -> None:
        self._begin(200)
        self._call.finish()

    def _begin(self, status: int) -> None:
        if not self._begun:
            self._begun = True
            self._call.begin(status, EVENTS, self._extra)
            self._call.filler = _COMMENT
