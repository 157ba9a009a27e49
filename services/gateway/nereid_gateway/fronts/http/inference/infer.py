"""Infer route: turns an HTTP call into an inference request, and the response into HTTP.

Each direction is one synchronous function, `infer` and `_respond`. Where one has to wait, it starts
a task that takes the remaining steps one after the other. The error of a wrong body is submitted as
a request, because the scheduler reports an unknown model first.
"""

from __future__ import annotations

from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, cast

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import NereidError, Unimplemented, http_status
from nereid.core.wire.messages import DECOUPLED, ErrorStatus, error_status_of
from nereid.pb import kserve_pb2
from nereid.rpc.net.limits.budget import OverBudgetError
from nereid_gateway.core import request_head
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_head import CACHED_HEADS
from nereid_gateway.core.response_timings import HEADER_BYTES
from nereid_gateway.core.retry_hints import over_budget, retry_line
from nereid_gateway.core.tensors.tensor_memory import fill_in_thread
from nereid_gateway.fronts.http.inference import raw_request
from nereid_gateway.fronts.http.inference.infer_request import (
    ALL_BINARY,
    HttpMessage,
    InferRequestDecoder,
    ParsedHeader,
    ResponseForm,
)
from nereid_gateway.fronts.http.inference.infer_response import LargeOutputsError, encode_job
from nereid_gateway.fronts.http.inference.request_template import RequestTemplate, make_template
from nereid_gateway.plane.control.load_reports import FORMAT_HEADER
from nereid_gateway.server import content_coding
from nereid_gateway.server.call import JSON, TEXT

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.core.routes import Route
    from nereid_gateway.core.tensors.tensor_memory import MessageBuffer
    from nereid_gateway.fronts.http.inference.infer_response import InferResponseEncoder
    from nereid_gateway.fronts.http.submission import InferSubmission
    from nereid_gateway.plane.control.load_reports import LoadReports
    from nereid_gateway.server.call import HttpCall
    from nereid_gateway.server.call_tasks import CallTasks

# Larger bodies are compressed in a thread. Smaller ones take a fraction of a millisecond.
_COMPRESS_BYTES: Final = 16384
# Larger decompressed bodies are moved to shared memory in a thread.
_COPY_BYTES: Final = 1 << 20
HEADER_LENGTH: Final = b"inference-header-content-length"
# A full cache is cleared.
_MAX_DECODERS: Final = 1024
_MAX_TARGET_BYTES: Final = 1024

# Content type, further header lines, and the parts of the body.
_Encoded = tuple[bytes, bytes, Any]


class InferEndpoint:
    """Serves the infer route."""

    def __init__(
        self,
        submission: InferSubmission,
        encoder: InferResponseEncoder,
        loads: LoadReports,
        tasks: CallTasks,
        coder: content_coding.ContentCoder,
    ) -> None:
        self._data_plane = submission.data_plane
        self._encoder = encoder
        self._submit_request = submission.submit_request
        self._loads = loads
        self._tasks = tasks
        self._coder = coder
        self._decoding = self._data_plane.decoding
        self._records_all = self._data_plane.records_all
        self.decoders_by_target: BoundedCache[bytes, InferRequestDecoder] = BoundedCache(
            _MAX_DECODERS, _MAX_TARGET_BYTES
        )
        # All decoders share the parsed JSON headers.
        self._headers: BoundedCache[tuple[bytes, bytes], ParsedHeader] = BoundedCache(CACHED_HEADS)

    def allocate_body(self, call: HttpCall, size_bytes: int) -> MessageBuffer | None:
        """Return a buffer for the body of a request, or None to gather the body as bytes."""
        if not _is_plain_infer(call):
            return None
        if HEADER_LENGTH not in call.headers:
            # Without a buffer, the pieces of a large JSON body would be joined all at once.
            return self._data_plane.tensors.message_buffer(size_bytes)
        length = bytes_before_tensors(call)
        # A buffer helps only if tensors follow the JSON header.
        if not 0 < length < size_bytes:
            return None
        return self._data_plane.tensors.message_buffer(size_bytes, length)

    def handle(self, call: HttpCall, route: Route) -> None:
        """Serve the first call of a target. For further calls, the front finds the decoder."""
        decoder = InferRequestDecoder(
            route.model,
            route.version,
            self._headers,
            self._data_plane.regions,
            self._coder.max_bytes,
        )
        self.decoders_by_target.remember(call.target, decoder)
        self.infer(call, decoder)

    def infer(
        self,
        call: HttpCall,
        decoder: InferRequestDecoder,
        template: RequestTemplate | None = None,
    ) -> None:
        """Decode the body of a call, and submit the request. A task takes the steps that wait.

        template: made from an earlier call with the same HTTP head on the same connection.
        """
        headers = call.headers
        if self._records_all or HEADER_BYTES in headers:
            call.received_ns = monotonic_ns()
        request = None if template is None else template.make_request(call.body)
        if template is not None and request is not None:
            form = template.form
        else:
            message = _message_of(call, decoder)
            if message.text_bytes and b"content-encoding" not in headers:
                request = self._decoding.decode_now(message)
            if request is None:
                self._tasks.spawn(call, self._infer_slowly(call, decoder, message))
                return
            form, template = message.form, None
            if call.known_headers is not None:
                call.known_headers.endpoint_data = make_template(
                    call, decoder, message.text_bytes, request
                )
        on_response = partial(self._respond, call, request.request_id, form, template)
        self._submit_request(call, request, on_response)

    async def _infer_slowly(
        self, call: HttpCall, decoder: InferRequestDecoder, message: HttpMessage
    ) -> None:
        try:
            if b"content-encoding" in call.headers:
                await self._decompress(call)
                message = _message_of(call, decoder)
            if message.text_bytes:
                request = await self._decoding.decode(message, call)
            else:
                from_raw = await self._read_raw(call, decoder)
                if from_raw is None:
                    return
                request, message.form = from_raw, ALL_BINARY
        except NereidError as error:
            request = message.error_request(error)
        except OverBudgetError as refusal:
            _fail(call, error_status_of(over_budget(refusal)))
            return
        on_response = partial(self._respond, call, request.request_id, message.form, None)
        self._submit_request(call, request, on_response)

    async def _decompress(self, call: HttpCall) -> None:
        # Other calls share the dict of headers, so it is copied before it is changed.
        call.headers = call.headers.copy()
        encoding = call.headers.pop(b"content-encoding")
        body = await self._coder.decompress(call.body, encoding, call.peer, call.hold)
        call.body = body
        if len(body) > _COPY_BYTES and HEADER_LENGTH in call.headers:
            buffer = self.allocate_body(call, len(body))
            if buffer is not None:
                await fill_in_thread(buffer, body)
                call.body, call.body_buffer = b"", buffer

    async def _read_raw(self, call: HttpCall, decoder: InferRequestDecoder) -> ClientRequest | None:
        """Return the request of a body without a JSON header, or respond that there is no model.

        The body has the data of the model's only input. Raises NereidError if it is invalid.
        """
        try:
            response = await self._data_plane.control.call(
                "ModelConfig",
                kserve_pb2.ModelConfigRequest(name=decoder.model, version=decoder.version),
                kserve_pb2.ModelConfigResponse,
            )
        except NereidError as error:
            _fail(call, ErrorStatus(error.code, error.message, accepted=True))
            return None
        tensor, payload = raw_request.deduce_input(response.config, call.body)
        checked = request_head.build(decoder.model, decoder.version, [tensor], ())
        return ClientRequest(0, checked.head, [payload])

    def _respond(
        self,
        call: HttpCall,
        request_id: str,
        form: ResponseForm,
        template: RequestTemplate | None,
        response: InferResponse,
    ) -> None:
        """Encode a response, and respond to the call. A task takes the steps that wait."""
        if response.error is not None:
            _fail(call, response.error)
            return
        if template is not None and call.keep_alive and call.last_lines is None:
            parts = template.response_parts(response)
            if parts is not None:
                call.complete(parts)
                return
        encoded: _Encoded | None = None
        try:
            encoded = self._encoder.encode(response, request_id, form)
        except NereidError as error:
            _fail(call, error_status_of(error))
            return
        except LargeOutputsError:
            pass
        encoding = _encoding_of(call)
        if (
            encoded is None
            or FORMAT_HEADER in call.headers
            or (encoding is not None and sum(map(len, encoded[2])) > _COMPRESS_BYTES)
        ):
            work = self._respond_slowly(call, request_id, form, response, encoded)
            self._tasks.spawn(call, work)
            return
        if template is not None:
            template.remember_response(response, encoded)
        content_type, extra, body = encoded
        if encoding is not None:
            extra += content_coding.ENCODING_LINE % encoding
            body = (content_coding.compress(body, encoding),)
        call.respond(200, body, content_type, extra)

    async def _respond_slowly(
        self,
        call: HttpCall,
        request_id: str,
        form: ResponseForm,
        response: InferResponse,
        encoded: _Encoded | None,
    ) -> None:
        if encoded is None:
            payloads: list[Any] = response.payloads
            decoders = self._data_plane.decoders
            arguments = response.head, request_id, form, decoders.max_text_bytes
            began_ns = monotonic_ns()
            try:
                (content_type, extra), body = await decoders.run(
                    call.peer, encode_job, *arguments, blobs=payloads
                )
            except NereidError as error:
                _fail(call, error_status_of(error))
                return
            members, _ = self._encoder.parse_head(response.head)
            took_ns = monotonic_ns() - began_ns
            self._decoding.large_texts.record(members["model_name"], took_ns)
        else:
            content_type, extra, body = encoded
        load_format = call.headers.get(FORMAT_HEADER)
        if load_format is not None:
            extra += await self._loads.line(load_format)
        accepted = call.headers.get(b"accept-encoding")
        body, line = await self._coder.encode(body, accepted, call.peer)
        call.respond(200, body, content_type, extra + line)


def bytes_before_tensors(call: HttpCall) -> int:
    """Return the length of the JSON header before binary tensors, or 0 if the body has none."""
    if not _is_plain_infer(call):
        return 0
    try:
        return int(call.headers.get(HEADER_LENGTH, b"0"))
    except ValueError:
        return 0


def _is_plain_infer(call: HttpCall) -> bool:
    is_infer = call.target.partition(b"?")[0].endswith(b"/infer")
    return is_infer and b"content-encoding" not in call.headers


def _message_of(call: HttpCall, decoder: InferRequestDecoder) -> HttpMessage:
    body: bytes | MessageBuffer = call.body
    if call.body_buffer is not None:
        body = cast("MessageBuffer", call.body_buffer)  # from allocate_body
    return HttpMessage(decoder, body, call.headers.get(HEADER_LENGTH))


def _encoding_of(call: HttpCall) -> bytes | None:
    accepted = call.headers.get(b"accept-encoding")
    return content_coding.choose_encoding(accepted) if accepted else None


def _fail(call: HttpCall, error_status: ErrorStatus) -> None:
    unsupported = (
        error_status.code == Unimplemented.code
        and error_status.message == content_coding.UNSUPPORTED_MESSAGE
    )
    extra = content_coding.SUPPORTED_LINE if unsupported else retry_line(error_status)
    prefix = "HTTP end point " if error_status.message == DECOUPLED else ""
    call.fail(
        http_status(error_status.code),
        prefix + error_status.message,
        TEXT if error_status.accepted else JSON,
        extra,
    )
