"""HTTP in front of the data plane: finds the route, translates infer requests and their answers.

The way of an infer request is one plain function and one callback; everything else runs as a task
(http_control). Faults of a request's body travel with it to the scheduler, which may know better
(the model does not exist).
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError, Unimplemented, http_status
from nereid.core.messages import DECOUPLED, Arrival, ErrorStatus, InferRequest, error_status_of
from nereid.pb import kserve_pb2
from nereid.services.gateway import request_head
from nereid.services.gateway.http import content_coding
from nereid.services.gateway.http.endpoints import raw_request
from nereid.services.gateway.http.endpoints.generate import HttpGenerate
from nereid.services.gateway.http.endpoints.infer_request import (
    ALL_BINARY,
    Header,
    HttpDecoder,
    ReplyForm,
    header_length,
)
from nereid.services.gateway.http.endpoints.infer_response import HttpEncoder
from nereid.services.gateway.http.endpoints.metadata import HttpControl
from nereid.services.gateway.http.routes import Kind, Route, resolve
from nereid.services.gateway.http.server.call import JSON, TEXT, HttpCall
from nereid.services.gateway.load_reports import FORMAT_HEADER, LoadReports
from nereid.services.gateway.policy.header_forwarding import SpeltHeaders
from nereid.services.gateway.tracing import trace_context

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nereid.core.messages import InferResponse
    from nereid.services.gateway.data_plane import DataPlane
    from nereid.services.gateway.infer_chain import RequestHandle
    from nereid.services.gateway.policy.header_forwarding import HeaderForwarding
    from nereid.services.gateway.tensor_memory import MessageBuffer

_log = logging.getLogger(__name__)

# Bodies past this are compressed and decompressed beside the event loop.
_INLINE_BYTES: Final = 262144
_HEADER_LENGTH: Final = b"inference-header-content-length"
# Targets and models remembered; past this the table starts anew.
_TABLE_LIMIT: Final = 1024
_TARGET_LIMIT_BYTES: Final = 1024
_GENERATE: Final = frozenset({Kind.GENERATE, Kind.GENERATE_STREAM})


# Content type, further header lines, body.
_Reply = tuple[bytes, bytes, Any]


class HttpFront:
    """Answers HttpCalls. Calling it is dispatching one."""

    def __init__(
        self,
        data_plane: DataPlane,
        max_input_bytes: int,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self._data_plane = data_plane
        self._max_input_bytes = max_input_bytes
        self._encoder = HttpEncoder()
        self._control = HttpControl(data_plane)
        self._loads = LoadReports(data_plane.control)
        self._generate = HttpGenerate(data_plane.control, self._encoder, self._loads, self._submit)
        # By exact target: the hot path finds its decoder in one look-up.
        self._infer_targets: dict[bytes, HttpDecoder] = {}
        self._headers: dict[tuple[bytes, bytes], Header] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Makes headers parameters; None: none are wanted.
        self.forwarding = forwarding

    def __call__(self, call: HttpCall) -> None:
        decoder = self._infer_targets.get(call.target)
        if decoder is not None and call.method == b"POST":
            self._infer(call, decoder)
            return
        route = resolve(call.target)
        if route.kind in _GENERATE and call.method == b"POST":
            self._spawn(call, self._generate.response(call, route))
        elif route.kind is not Kind.INFER:
            self._control.dispatch(call, route, self._spawn)
        elif call.method != b"POST":
            call.refuse_method(TEXT, b"POST")
        else:
            self._infer(call, self._decoder(call.target, route))

    def _decoder(self, target: bytes, route: Route) -> HttpDecoder:
        decoder = HttpDecoder(route.name, route.version, self._headers, self._data_plane.regions)
        if len(target) <= _TARGET_LIMIT_BYTES:
            if len(self._infer_targets) >= _TABLE_LIMIT:
                self._infer_targets.clear()
            self._infer_targets[target] = decoder
        return decoder

    # --- infer ----------------------------------------------------------------------------------

    def _infer(self, call: HttpCall, decoder: HttpDecoder) -> None:
        headers = call.headers
        body = call.body if call.room is None else call.room
        if self._data_plane.records_arrivals and not call.received_ns:
            call.received_ns = monotonic_ns()
        if b"content-encoding" in headers:
            self._spawn(call, self._infer_compressed(call, decoder))
            return
        try:
            length = header_length(headers.get(_HEADER_LENGTH), len(body))
        except NereidError as error:
            self._submit_infer(call, decoder.faulty(error), ReplyForm())
            return
        if length == 0:
            self._spawn(call, self._infer_raw(call, decoder))
            return
        request, form = decoder.decode(body, length)
        self._submit_infer(call, request, form)

    def _submit_infer(self, call: HttpCall, request: InferRequest, form: ReplyForm) -> None:
        """Send the request on its way, and its answer back."""

        def on_response(wire_response: InferResponse) -> None:
            if wire_response.error is not None:
                _fail_infer(call, wire_response.error)
            else:
                self._reply(call, wire_response, request.request_id, form)

        self._submit(call, request, on_response)

    def _submit(
        self, call: HttpCall, request: InferRequest, on_response: Callable[[InferResponse], None]
    ) -> RequestHandle:
        traceparent = call.headers.get(b"traceparent")
        if traceparent is not None:
            request.trace_context = trace_context.binary(traceparent)
        if self.forwarding is not None and isinstance(call.headers, SpeltHeaders):
            self.forwarding.forward_headers(request, call.headers.spelt.items())
        if self._data_plane.records_arrivals:
            request.arrival = Arrival("http", call.received_ns)
        under_way = self._data_plane.infer(request, on_response)
        if not call.done:
            call.on_cancel = under_way.cancel
        # What the connection holds on to while the answer is awaited needs no body.
        call.body = b""
        call.room = None
        return under_way

    def room(self, call: HttpCall, size_bytes: int) -> MessageBuffer | None:
        """Where to put the body of a request that begins; None: in bytes."""
        if b"content-encoding" in call.headers:
            return None
        try:
            length = int(call.headers.get(_HEADER_LENGTH, b""))
        except ValueError:
            return None
        # All JSON, or nothing but a tensor: these are read as bytes.
        if not 0 < length < size_bytes:
            return None
        return self._data_plane.tensors.message_buffer(size_bytes, length)

    def _reply(
        self, call: HttpCall, wire_response: InferResponse, request_id: str, form: ReplyForm
    ) -> None:
        try:
            content_type, extra, body = self._encoder.encode(wire_response, request_id, form)
        except NereidError as error:
            _fail_infer(call, error_status_of(error))
            return
        load_form = call.headers.get(FORMAT_HEADER)
        if load_form is None:
            self._respond(call, (content_type, extra, body))
        else:
            self._spawn(call, self._respond_with_load(call, (content_type, extra, body), load_form))

    async def _respond_with_load(self, call: HttpCall, reply: _Reply, load_form: bytes) -> None:
        content_type, extra, body = reply
        line = await self._loads.line(load_form)
        self._respond(call, (content_type, extra + line, body))

    def _respond(self, call: HttpCall, reply: _Reply) -> None:
        content_type, extra, body = reply
        accepted = call.headers.get(b"accept-encoding")
        encoding = content_coding.choose(accepted) if accepted else None
        if encoding is None:
            call.respond(200, body, content_type, extra)
            return
        extra += b"Content-Encoding: %b\r\n" % encoding
        if sum(map(len, body)) <= _INLINE_BYTES:
            call.respond(200, (content_coding.compress(body, encoding),), content_type, extra)
            return
        self._spawn(call, _reply_compressed(call, (content_type, extra, body), encoding))

    async def _infer_compressed(self, call: HttpCall, decoder: HttpDecoder) -> None:
        encoding = call.headers.pop(b"content-encoding")
        try:
            if len(call.body) <= _INLINE_BYTES // 16:
                body = content_coding.decompress(call.body, encoding, self._max_input_bytes)
            else:
                body = await asyncio.to_thread(
                    content_coding.decompress, call.body, encoding, self._max_input_bytes
                )
        except NereidError as error:
            self._submit_infer(call, decoder.faulty(error), ReplyForm())
            return
        call.body = body
        self._infer(call, decoder)

    async def _infer_raw(self, call: HttpCall, decoder: HttpDecoder) -> None:
        """The model's configuration says what a body without a header is."""
        try:
            response = await self._data_plane.control.call(
                "ModelConfig",
                kserve_pb2.ModelConfigRequest(name=decoder.model, version=decoder.version),
                kserve_pb2.ModelConfigResponse,
            )
        except NereidError as error:
            _fail_infer(call, ErrorStatus(error.code, error.message, accepted=True))
            return
        try:
            tensor, payload = raw_request.deduce(response.config, call.body)
            checked = request_head.build(decoder.model, decoder.version, [tensor], ())
        except NereidError as error:
            self._submit_infer(call, decoder.faulty(error), ReplyForm())
            return
        self._submit_infer(call, InferRequest(0, checked.head, [payload]), ALL_BINARY)

    # --- tasks ----------------------------------------------------------------------------------

    def _spawn(self, call: HttpCall, work: Coroutine[Any, Any, None]) -> None:
        """Run work for a call; the client's going cancels it."""
        task = asyncio.get_running_loop().create_task(_guard(call, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not call.done:

            def cancel() -> None:
                task.cancel()

            call.on_cancel = cancel


async def _guard(call: HttpCall, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except NereidError as error:
        call.fail(http_status(error.code), error.message)
    except Exception:
        _log.exception("a control call failed")
        call.fail(http_status(Internal.code), INTERNAL_MESSAGE)


async def _reply_compressed(call: HttpCall, reply: _Reply, encoding: bytes) -> None:
    content_type, extra, body = reply
    packed = await asyncio.to_thread(content_coding.compress, body, encoding)
    call.respond(200, (packed,), content_type, extra)


def _fail_infer(call: HttpCall, error_status: ErrorStatus) -> None:
    unsupported = (
        error_status.code == Unimplemented.code
        and error_status.message == content_coding.UNSUPPORTED_MESSAGE
    )
    point = "HTTP end point " if error_status.message == DECOUPLED else ""
    call.fail(
        http_status(error_status.code),
        point + error_status.message,
        TEXT if error_status.accepted else JSON,
        content_coding.SUPPORTED if unsupported else b"",
    )
