"""ModelStreamInfer: many requests on one call, without a task for each request.

Reading pauses while too many requests are pending or the client leaves too many replies unread.
Meanwhile, models that have more responses for this client are paused as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from nereid.core.errors import NereidError
from nereid.rpc import Status
from nereid.rpc.grpc.status import status_of_over_budget
from nereid.rpc.net.limits.budget import OverBudgetError
from nereid_gateway.core import trace_context
from nereid_gateway.core.request_record import RequestRecord
from nereid_gateway.core.response_timings import HEADER, server_timing
from nereid_gateway.fronts.grpc.infer_codec import GrpcMessage, checked_size
from nereid_gateway.fronts.grpc.stream_responses import (
    PendingReply,
    ReplyOrder,
    empty_final_reply,
    reply_to,
)
from nereid_gateway.fronts.grpc.stream_turns import STREAM_MESSAGES, StreamTurns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, MutableMapping

    from nereid.core.wire.messages import InferResponse
    from nereid.rpc import Call
    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.core.infer_step import Infer
    from nereid_gateway.core.request_handle import RequestHandle
    from nereid_gateway.fronts.grpc.bounded_decoder import BoundedDecoder
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.header_forwarding import HeaderForwarding

# A client that sends this metadata key gets a model's failure as the status of the call.
_STATUS_WANTED: Final = "triton_grpc_error"
# Reading pauses at either limit. It resumes when fewer than half of MAX_PENDING are pending.
MAX_PENDING: Final = 1024
_MAX_UNREAD_BYTES: Final = 1 << 20

_EndStatus = tuple[Status, str]
_OK: Final[_EndStatus] = (Status.OK, "")


class InferStreams:
    """The open streams of one gateway."""

    def __init__(
        self,
        data_plane: DataPlane,
        decoder: BoundedDecoder,
        statuses: MutableMapping[int, int],
        early_end_status: Callable[[Call], Status],
        forwarding: HeaderForwarding | None,
    ) -> None:
        self.data_plane = data_plane
        self.decoder = decoder
        self.statuses = statuses
        self.early_end_status = early_end_status
        self.forwarding = forwarding
        self.turns = StreamTurns()
        self._open: set[_InferStream] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def open_stream(self, call: Call, infer: Infer) -> None:
        """Serve a new call. infer: submits the requests of the call."""
        stream = _InferStream(self, call, infer)
        self._open.add(stream)
        call.on_message = stream.on_message
        call.on_half_close = stream.on_half_close
        call.on_writable = stream.on_writable
        call.on_cancel = stream.on_cancel

    def end_streams(self, status: Status, message: str) -> None:
        """Stop reading, and end each stream with this status when it has no pending requests."""
        for stream in list(self._open):
            stream.end((status, message))

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run work as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def remove_stream(self, stream: _InferStream) -> None:
        """Forget a stream that has ended."""
        self._open.discard(stream)


class _StreamRequest(PendingReply):
    __slots__ = ("_decoupled", "_stream", "ended", "handle", "request", "timed")

    def __init__(
        self, stream: _InferStream, request: ClientRequest, timed: RequestRecord | None
    ) -> None:
        super().__init__()
        self._stream = stream
        self.request = request
        # Record of a request whose last response has timings.
        self.timed = timed
        # True after a response with `more`, which only a decoupled model sends.
        self._decoupled = False
        # None before infer() returns and after the end. The handle refers to on_response, so
        # keeping it would hold the tensors until a garbage collection.
        self.handle: RequestHandle | None = None
        # True after the last response or a cancellation.
        self.ended = False

    def on_response(self, response: InferResponse) -> None:
        stream, request = self._stream, self.request
        if stream.ended:
            return
        timings = ""
        if self.timed is not None and not response.more:
            timings = server_timing(self.timed)
        response = checked_size(response, request.request_id)
        error_status = response.error
        if error_status is not None or response.head:
            stream.statuses[0 if error_status is None else error_status.code] += 1
            if error_status is not None and response.head and stream.wants_status:
                stream.fail(Status(error_status.code), error_status.message)
                return
            reply = reply_to(response, request.request_id, not response.more, timings)
        elif request.wants_empty_final and not response.more:
            reply = empty_final_reply(request.head, request.request_id, timings)
        else:
            reply = b""
        if response.more:
            self._decoupled = True
            stream.send_reply(self, reply)
            return
        self.ended, self.handle = True, None
        if self._decoupled:
            stream.order.send_at_once(reply)
            reply = b""
        stream.order.send_last(self, reply)
        if stream.reading_paused:
            stream.resume_reading()
        elif stream.end_status is not None:
            stream.end_if_finished()

    def cancel(self) -> None:
        handle, self.handle = self.handle, None
        self.ended = True
        if handle is not None:
            handle.cancel()

    def set_flow(self, *, paused: bool) -> None:
        if self.handle is not None:
            self.handle.set_flow(paused=paused)


class _InferStream:
    __slots__ = (
        "_call",
        "_decoding",
        "_half_closed",
        "_infer",
        "_owner",
        "_paused_requests",
        "_timed",
        "_trace_context",
        "_unread",
        "_unread_bytes",
        "end_status",
        "ended",
        "order",
        "reading_paused",
        "statuses",
        "wants_status",
    )

    def __init__(self, owner: InferStreams, call: Call, infer: Infer) -> None:
        self._owner = owner
        self._call = call
        self._infer = infer
        self.order = ReplyOrder(call.send)
        self.statuses = owner.statuses
        self.wants_status = call.get(_STATUS_WANTED) == "true"
        self._timed = owner.data_plane.timed.include(call.get(HEADER))
        traceparent = call.get("traceparent")
        self._trace_context = b""
        if traceparent is not None:
            self._trace_context = trace_context.binary(traceparent, call.get("tracestate"))
        # The client's flow-control window bounds these messages, which arrived while reading was
        # paused.
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self.reading_paused = False
        self._decoding: asyncio.Task[None] | None = None
        # Requests whose models are paused until the client has read its replies.
        self._paused_requests: dict[_StreamRequest, None] = {}
        # If set, reading has stopped, and the call ends with this status when no request is
        # pending.
        self.end_status: _EndStatus | None = None
        self._half_closed = False
        self.ended = False

    def on_message(self, message: bytes) -> None:
        if self.reading_paused:
            self._keep_unread(message)
        elif self.end_status is None:
            self._submit_message(message)
            turns = self._owner.turns
            spent = turns.spend()
            if spent or self._is_full():
                self.reading_paused = True
                self._call.pause()
                if spent:
                    turns.wait(self)

    def on_half_close(self) -> None:
        self._half_closed = True
        if not self.reading_paused:
            self.end(_OK)

    def on_cancel(self) -> None:
        self.statuses[self._owner.early_end_status(self._call)] += 1
        self._cancel_requests()

    def on_writable(self) -> None:
        if self._paused_requests:
            paused, self._paused_requests = self._paused_requests, {}
            for request in paused:
                request.set_flow(paused=False)
        self.resume_reading()

    def send_reply(self, request: _StreamRequest, reply: bytes) -> None:
        self.order.send_at_once(reply)
        if self._call.buffered_bytes > _MAX_UNREAD_BYTES and request not in self._paused_requests:
            self._paused_requests[request] = None
            request.set_flow(paused=True)

    def continue_reading(self) -> None:
        self.resume_reading(MAX_PENDING)

    def resume_reading(self, max_pending: int = MAX_PENDING // 2) -> None:
        if not self.reading_paused or self.ended or self._is_full(max_pending):
            return
        unread, turns = self._unread, self._owner.turns
        if turns.spent:
            turns.wait(self)
            return
        self.reading_paused = False
        handled = 0
        while unread and self.end_status is None:
            message = unread.popleft()
            self._release_unread(len(message))
            self._submit_message(message)
            handled += 1
            if self._is_full():
                self.reading_paused = True
                return
            if (turns.spend() or handled >= STREAM_MESSAGES) and unread:
                self.reading_paused = True
                turns.wait(self)
                return
        if self._half_closed:
            self.end(_OK)
        elif self.end_status is None:
            self._call.resume()
        else:
            self.end_if_finished()

    def end(self, end_status: _EndStatus) -> None:
        if self.end_status is None and not self.ended:
            self.end_status = end_status
            self._drop_unread()
            self.reading_paused = False
            if not self._half_closed:
                self._call.pause()
            self.end_if_finished()

    def end_if_finished(self) -> None:
        if self._decoding is not None:
            return
        if self.end_status is not None and not self.order.replies and not self.ended:
            status, message = self.end_status
            if status:
                self.statuses[status] += 1
            self.ended = True
            self._owner.remove_stream(self)
            self._call.finish(status, message)

    def fail(self, status: Status, message: str) -> None:
        self._cancel_requests()
        self._call.fail(status, message)

    def _keep_unread(self, message: bytes) -> None:
        if self.end_status is not None or self.ended:
            return
        try:
            self._call.account.charge(len(message))
        except OverBudgetError as error:
            self.end((status_of_over_budget(error), error.message))
            return
        self._unread_bytes += len(message)
        self._unread.append(message)

    def _release_unread(self, size_bytes: int) -> None:
        if size_bytes:
            self._unread_bytes -= size_bytes
            self._call.account.release(size_bytes)

    def _drop_unread(self) -> None:
        self._unread.clear()
        self._release_unread(self._unread_bytes)

    def _submit_message(self, message: bytes) -> None:
        owner = self._owner
        received_ns = monotonic_ns() if self._timed or owner.data_plane.records_all else 0
        try:
            decoded = owner.decoder.decode_now(message)
        except NereidError as error:
            # A message that cannot be parsed has no request id, so the call ends without a reply to
            # it.
            self.end((Status(error.code), error.message))
            return
        if isinstance(decoded, GrpcMessage):
            # Nothing is read until the message is decoded, so requests keep their order.
            self._decoding = owner.spawn(self._decode_and_submit(decoded, received_ns))
        else:
            self._submit_request(decoded, received_ns)

    async def _decode_and_submit(self, message: GrpcMessage, received_ns: int) -> None:
        decoder = self._owner.decoder
        try:
            request = await decoder.decode(message, self._call, accepts_many=True)
        except NereidError as error:
            self._decoding = None
            self.end((Status(error.code), error.message))
            self.end_if_finished()
        except Exception as error:
            self._decoding = None
            self._cancel_requests()
            self._call.fail_with(error)
        else:
            self._decoding = None
            self._call.release()
            self._submit_request(request, received_ns)
            self.resume_reading()

    def _submit_request(self, request: ClientRequest, received_ns: int) -> None:
        owner = self._owner
        request.accepts_many = True
        request.deadline = self._call.deadline
        request.sender = self._call.account
        request.headers = self._call.metadata
        request.trace_context = self._trace_context
        if owner.forwarding is not None:
            owner.forwarding.forward_headers(request, self._call.metadata)
        timed: RequestRecord | None = None
        if self._timed or owner.data_plane.records_all:
            record = request.record = RequestRecord("grpc", received_ns, self._call, True)
            if self._timed:
                request.wants_timings = True
                timed = record
        stream_request = _StreamRequest(self, request, timed)
        self.order.add_request(stream_request)
        handle = self._infer(request, stream_request.on_response)
        if not stream_request.ended:
            stream_request.handle = handle

    def _is_full(self, max_pending: int = MAX_PENDING) -> bool:
        return (
            self._decoding is not None
            or len(self.order.replies) >= max_pending
            or self._call.buffered_bytes > _MAX_UNREAD_BYTES
        )

    def _cancel_requests(self) -> None:
        self.ended = True
        self._owner.remove_stream(self)
        if self._decoding is not None:
            self._decoding.cancel()
            self._decoding = None
        for request in self.order.replies:
            # cancel() has no effect on a request that has ended.
            request.cancel()
        self.order.replies.clear()
        self._paused_requests.clear()
        self._drop_unread()
