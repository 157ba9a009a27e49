"""Submits HTTP calls to the data plane, with the information from their headers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nereid_gateway.core import trace_context
from nereid_gateway.core.request_record import RequestRecord
from nereid_gateway.core.response_timings import HEADER_BYTES, server_timing
from nereid_gateway.server.header_forwarding import CasePreservingHeaders

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.core.request_handle import RequestHandle
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.call import HttpCall
    from nereid_gateway.server.header_forwarding import HeaderForwarding


class InferSubmission:
    """Submits inference requests to the data plane."""

    def __init__(self, data_plane: DataPlane, forwarding: HeaderForwarding | None) -> None:
        """Keep the data plane. forwarding: forwards headers as parameters, or None."""
        self.data_plane = data_plane
        self._forwarding = forwarding
        self._times_all = data_plane.times_all
        self._records_all = data_plane.records_all

    def submit_request(
        self, call: HttpCall, request: ClientRequest, on_response: Callable[[InferResponse], None]
    ) -> RequestHandle:
        """Submit a request. It is cancelled if the client disconnects."""
        self._add_origin(call, request)
        headers = call.headers
        is_timed = (HEADER_BYTES in headers or self._times_all) and self.data_plane.timed.include(
            headers.get(HEADER_BYTES)
        )
        if is_timed or self._records_all:
            record = request.record = RequestRecord("http", call.received_ns, call)
            if is_timed:
                request.wants_timings = True
                call.last_lines = partial(_timing_line, record)
        # The data plane charges the bytes from here on.
        call.free_body()
        submitted = self.data_plane.infer(request, on_response)
        if not call.done:
            call.on_cancel = submitted.cancel
        return submitted

    def submit_row(
        self,
        call: HttpCall,
        tokenized_ns: tuple[int, int],
        request: ClientRequest,
        on_response: Callable[[InferResponse], None],
    ) -> RequestHandle:
        """Submit one of several requests that a call consists of. The caller cancels them.

        tokenized_ns: when the texts of the call began and ended to be tokenized.
        """
        self._add_origin(call, request)
        if self._records_all:
            request.record = RequestRecord("http", call.received_ns, call)
            request.record.tokenized_ns = tokenized_ns
        return self.data_plane.infer(request, on_response)

    def _add_origin(self, call: HttpCall, request: ClientRequest) -> None:
        """Set a request's sender, its trace context, and the headers forwarded to models."""
        request.sender = call.sender
        headers = request.headers = call.headers
        if b"traceparent" in headers:
            state = headers.get(b"tracestate")
            request.trace_context = trace_context.binary(headers[b"traceparent"], state)
        if self._forwarding is not None and isinstance(headers, CasePreservingHeaders):
            self._forwarding.forward_headers(request, headers.spelt.items())


def _timing_line(record: RequestRecord) -> bytes:
    return b"Server-Timing: %b\r\n" % server_timing(record).encode()
