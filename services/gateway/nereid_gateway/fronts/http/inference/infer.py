"""Infer route: turns an HTTP call into an inference request, and the response into HTTP.

The common path is synchronous. Tasks do whatever needs a control call or a thread: raw requests,
compression of large bodies, load reports. The error of a wrong body is submitted as a request,
because the scheduler reports an unknown model first.
"""

from __future__ import annotations

from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, cast

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import NereidError, Unimplemented, http_status
from nereid.core.wire.messages import DECOUPLED, ErrorStatus, InferRequest, error_status_of
from nereid.pb import kserve_pb2
from nereid.rpc.net.limits.budget import OverBudgetError
from nereid_gateway.core import request_head
from nereid_gateway.core.request_head import CACHED_HEADS
from nereid_gateway.core.response_timings import HEADER_BYTES
from nereid_gateway.core.retry_hints import over_budget, retry_line
from nereid_gateway.core.tensors import string_elements
from nereid_gateway.core.tensors.tensor_memory import fill_in_thread
from nereid_gateway.fronts.http.inference import raw_request
from nereid_gateway.fronts.http.inference.infer_request import (
    ALL_BINARY,
    InferRequestDecoder,
    ParsedHeader,
    ResponseForm,
    header_length,
)
from nereid_gateway.fronts.http.inference.infer_response import LargeOutputsError, encode_job
from nereid_gateway.fronts.http.inference.request_template import RequestTemplate, make_template
from nereid_gateway.plane.client_shm.regions import ReadLaterError
from nereid_gateway.plane.control.load_reports import FORMAT_HEADER
from nereid_gateway.plane.decoding.limits import LARGE_BYTES, SMALL_BYTES
from nereid_gateway.plane.decoding.turns import TurnSpentError
from nereid_gateway.server import content_coding
from nereid_gateway.server.call import JSON, TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.core.routes import Route
    from nereid_gateway.core.tensors.region_ranges import RegionRanges
    from nereid_gateway.core.tensors.string_elements import StringInput
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
_HEADER_LENGTH: Final = b"inference-header-content-length"
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
        self._submit_plain = submission.submit_plain
        self._has_templates = not submission.reads_headers
        self._loads = loads
        self._tasks = tasks
        self._coder = coder
        self._turns = self._data_plane.turns
        self.decoders_by_target: BoundedCache[bytes, InferRequestDecoder] = BoundedCache(
            _MAX_DECODERS, _MAX_TARGET_BYTES
        )
        # All decoders share the parsed JSON headers.
        self._headers: BoundedCache[tuple[bytes, bytes], ParsedHeader] = BoundedCache(CACHED_HEADS)

    def allocate_body(self, call: HttpCall, size_bytes: int) -> MessageBuffer | None:
        """Return a buffer for the body of a request, or None to gather the body as bytes."""
        is_infer = call.target.partition(b"?")[0].endswith(b"/infer")
        if not is_infer or b"content-encoding" in call.headers:
            return None
        length_header = call.headers.get(_HEADER_LENGTH)
        if length_header is None:
            # Without a buffer, the pieces of a large JSON body would be joined all at once.
            return self._data_plane.tensors.message_buffer(size_bytes)
        try:
            length = int(length_header)
        except ValueError:
            return None
        # A buffer helps only if tensors follow the JSON header.
        if not 0 < length < size_bytes:
            return None
        return self._data_plane.tensors.message_buffer(size_bytes, length)

    def handle(self, call: HttpCall, route: Route) -> None:
        """Serve the first call of a target. For further calls, the front finds the decoder."""
        decoder = InferRequestDecoder(
            route.model, route.version, self._headers, self._data_plane.regions
        )
        self.decoders_by_target.remember(call.target, decoder)
        self.infer(call, decoder)

    def infer(self, call: HttpCall, decoder: InferRequestDecoder) -> None:
        """Decode the body of a call, and submit the request."""
        headers = call.headers
        body: bytes | MessageBuffer = call.body
        if call.body_buffer is not None:
            body = cast("MessageBuffer", call.body_buffer)  # from allocate_body
        if not call.received_ns and (self._data_plane.records_arrivals or HEADER_BYTES in headers):
            call.received_ns = monotonic_ns()
        if b"content-encoding" in headers:
            self._tasks.spawn(call, self._infer_compressed(call, decoder))
            return
        try:
            length = header_length(headers.get(_HEADER_LENGTH), len(body))
        except NereidError as error:
            self._submit(call, decoder.error_request(error), ResponseForm())
            return
        if length == 0:
            self._tasks.spawn(call, self._infer_raw(call, decoder))
            return
        if length > SMALL_BYTES or len(body) > LARGE_BYTES:
            self._infer_large(call, decoder, body, length)
            return
        try:
            request, form = decoder.decode(body, length)
        except ReadLaterError as later:
            self._tasks.spawn(call, self._infer_read(call, decoder, body, length, later.named))
            return
        known_headers = call.known_headers
        if known_headers is not None and self._has_templates:
            known_headers.endpoint_data = make_template(call, decoder, length, request)
        self._submit(call, request, form)

    def infer_again(self, call: HttpCall, template: RequestTemplate) -> None:
        """Serve a call that has the same HTTP head as an earlier call on its connection."""
        if self._data_plane.records_arrivals:
            call.received_ns = monotonic_ns()
        request = template.make_request(call.body)
        if request is None:
            self.infer(call, template.decoder)
            return
        self._submit_plain(call, request, partial(self._respond_again, call, template))

    def _infer_large(
        self,
        call: HttpCall,
        decoder: InferRequestDecoder,
        body: bytes | MessageBuffer,
        length: int,
    ) -> None:
        if length > LARGE_BYTES:
            self._tasks.spawn(call, self._infer_by_pool(call, decoder, body, length))
            return
        if length > SMALL_BYTES:
            try:
                self._turns.spend(length)
            except TurnSpentError:
                self._tasks.spawn(call, self._infer_later(call, decoder, body, length))
                return
        self._infer_admitted(call, decoder, body, length)

    def _infer_admitted(
        self,
        call: HttpCall,
        decoder: InferRequestDecoder,
        body: bytes | MessageBuffer,
        length: int,
    ) -> None:
        unchecked: list[StringInput] = []
        try:
            request, form = decoder.decode(body, length, unchecked)
        except ReadLaterError as later:
            self._tasks.spawn(call, self._infer_read(call, decoder, body, length, later.named))
            return
        if unchecked and request.error_status is None:
            self._tasks.spawn(call, self._infer_checked(call, decoder, request, form, unchecked))
        else:
            self._submit(call, request, form)

    async def _infer_later(
        self,
        call: HttpCall,
        decoder: InferRequestDecoder,
        body: bytes | MessageBuffer,
        length: int,
    ) -> None:
        await self._turns.wait(call.peer, length)
        self._infer_admitted(call, decoder, body, length)

    async def _infer_read(
        self,
        call: HttpCall,
        decoder: InferRequestDecoder,
        body: bytes | MessageBuffer,
        length: int,
        named: RegionRanges,
    ) -> None:
        regions = self._data_plane.regions
        try:
            inputs = await regions.read(named, self._data_plane.tensors, call.hold)
        except NereidError as error:
            self._submit(call, decoder.error_request(error), ResponseForm())
            return
        except OverBudgetError as refusal:
            _fail(call, error_status_of(over_budget(refusal)))
            return
        with regions.having(inputs):
            self._infer_admitted(call, decoder, body, length)

    async def _infer_by_pool(
        self,
        call: HttpCall,
        decoder: InferRequestDecoder,
        body: bytes | MessageBuffer,
        length: int,
    ) -> None:
        refusal = await self._data_plane.find_model(decoder.naming_head)
        if refusal is not None:
            _fail(call, refusal)
            return
        run_job = self._data_plane.decoders.for_peer(call.peer)
        read = partial(
            self._data_plane.regions.read, tensors=self._data_plane.tensors, hold=call.hold
        )
        try:
            request, form = await decoder.decode_large(body, length, run_job, read)
        except OverBudgetError as error:
            _fail(call, error_status_of(over_budget(error)))
            return
        await self._data_plane.tensors.stage_in_thread(request)
        self._submit(call, request, form)

    async def _infer_checked(
        self,
        call: HttpCall,
        decoder: InferRequestDecoder,
        request: InferRequest,
        form: ResponseForm,
        unchecked: Sequence[StringInput],
    ) -> None:
        refusal = await self._data_plane.find_model(decoder.naming_head)
        if refusal is not None:
            _fail(call, refusal)
            return
        run_job = self._data_plane.decoders.for_peer(call.peer)
        try:
            self._data_plane.check_size(request)
            await string_elements.check_large(request, unchecked, run_job)
        except NereidError as error:
            request = decoder.error_request(error, request.request_id)
        self._submit(call, request, form)

    async def _infer_compressed(self, call: HttpCall, decoder: InferRequestDecoder) -> None:
        # Other calls share the dict of headers, so it is copied before it is changed.
        call.known_headers = None
        call.headers = call.headers.copy()
        encoding = call.headers.pop(b"content-encoding")
        try:
            body = await self._coder.decompress(call.body, encoding, call.peer, call.hold)
        except NereidError as error:
            self._submit(call, decoder.error_request(error), ResponseForm())
            return
        call.body = body
        if len(body) > _COPY_BYTES and _HEADER_LENGTH in call.headers:
            buffer = self.allocate_body(call, len(body))
            if buffer is not None:
                await fill_in_thread(buffer, body)
                call.body, call.body_buffer = b"", buffer
        self.infer(call, decoder)

    async def _infer_raw(self, call: HttpCall, decoder: InferRequestDecoder) -> None:
        """Submit a body without a JSON header. It has the data of the model's only input."""
        try:
            response = await self._data_plane.control.call(
                "ModelConfig",
                kserve_pb2.ModelConfigRequest(name=decoder.model, version=decoder.version),
                kserve_pb2.ModelConfigResponse,
            )
        except NereidError as error:
            _fail(call, ErrorStatus(error.code, error.message, accepted=True))
            return
        try:
            tensor, payload = raw_request.deduce_input(response.config, call.body)
            checked = request_head.build(decoder.model, decoder.version, [tensor], ())
        except NereidError as error:
            self._submit(call, decoder.error_request(error), ResponseForm())
            return
        self._submit(call, InferRequest(0, checked.head, [payload]), ALL_BINARY)

    def _submit(self, call: HttpCall, request: InferRequest, form: ResponseForm) -> None:
        self._submit_request(call, request, partial(self._on_response, call, request, form))

    def _on_response(
        self, call: HttpCall, request: InferRequest, form: ResponseForm, response: InferResponse
    ) -> None:
        if response.error is not None:
            _fail(call, response.error)
        else:
            self._encode_and_respond(call, response, request.request_id, form)

    def _respond_again(
        self, call: HttpCall, template: RequestTemplate, response: InferResponse
    ) -> None:
        if response.error is not None:
            _fail(call, response.error)
            return
        parts = template.response_parts(response) if call.keep_alive else None
        if parts is not None:
            call.respond_again(parts)
        else:
            self._encode_and_respond(call, response, "", template.form, template)

    def _encode_and_respond(
        self,
        call: HttpCall,
        response: InferResponse,
        request_id: str,
        form: ResponseForm,
        template: RequestTemplate | None = None,
    ) -> None:
        try:
            encoded = self._encoder.encode(response, request_id, form)
        except NereidError as error:
            _fail(call, error_status_of(error))
        except LargeOutputsError:
            self._tasks.spawn(call, self._encode_by_pool(call, response, request_id, form))
        else:
            if template is not None:
                template.remember_response(response, encoded)
            self._respond_encoded(call, encoded)

    async def _encode_by_pool(
        self, call: HttpCall, response: InferResponse, request_id: str, form: ResponseForm
    ) -> None:
        payloads: list[Any] = response.payloads
        try:
            decoders = self._data_plane.decoders
            arguments = response.head, request_id, form, decoders.max_text_bytes
            (content_type, extra), body = await decoders.run(
                call.peer, encode_job, *arguments, blobs=payloads
            )
        except NereidError as error:
            _fail(call, error_status_of(error))
        else:
            self._respond_encoded(call, (content_type, extra, body))

    def _respond_encoded(self, call: HttpCall, encoded: _Encoded) -> None:
        load_format = call.headers.get(FORMAT_HEADER)
        if load_format is None:
            self._respond(call, encoded)
        else:
            self._tasks.spawn(call, self._respond_with_load(call, encoded, load_format))

    async def _respond_with_load(
        self, call: HttpCall, encoded: _Encoded, load_format: bytes
    ) -> None:
        content_type, extra, body = encoded
        line = await self._loads.line(load_format)
        self._respond(call, (content_type, extra + line, body))

    def _respond(self, call: HttpCall, encoded: _Encoded) -> None:
        content_type, extra, body = encoded
        accepted = call.headers.get(b"accept-encoding")
        encoding = content_coding.choose_encoding(accepted) if accepted else None
        if encoding is None:
            call.respond(200, body, content_type, extra)
            return
        extra += b"Content-Encoding: %b\r\n" % encoding
        if sum(map(len, body)) <= _COMPRESS_BYTES:
            call.respond(200, (content_coding.compress(body, encoding),), content_type, extra)
            return
        self._tasks.spawn(
            call, self._respond_compressed(call, (content_type, extra, body), encoding)
        )

    async def _respond_compressed(self, call: HttpCall, encoded: _Encoded, encoding: bytes) -> None:
        content_type, extra, body = encoded
        compressed = await self._coder.compress(body, encoding, call.peer)
        call.respond(200, (compressed,), content_type, extra)


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
