"""ModelStreamInfer: many requests on one call, without a task for any of them.

Reading pauses while too many requests are pending or the client leaves replies unread, and resumes
when that is over; models that have more responses for such a client are paused for as long. The
module knows no scheduler; stream_responses has the order and form of replies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from nereid.core.errors import NereidError
from nereid.core.wire.messages import Arrival
from nereid.rpc import Status
from nereid.rpc.grpc.status import status_of_over_budget
from nereid.rpc.net.limits.budget import OverBudgetError
from nereid_gateway.core import trace_context
from nereid_gateway.core.response_timings import HEADER, start_timer
from nereid_gateway.fronts.grpc.stream_responses import (
    PendingReply,
    ReplyOrder,
    empty_final_reply,
    reply_to,
)
from nereid_gateway.fronts.grpc.stream_turns import STREAM_MESSAGES, StreamTurns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, MutableMapping

    from nereid.core.wire.messages import InferRequest, InferResponse
    from nereid.rpc import Call
    from nereid_gateway.core.infer_step import Infer, RequestHandle
    from nereid_gateway.core.response_timings import ResponseTimer
    from nereid_gateway.fronts.grpc.bounded_decoder import BoundedDecoder
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.header_forwarding import HeaderForwarding

# Metadata by which a client asks for a model's failure as the status of the call.
_STATUS_WANTED: Final = "triton_grpc_error"
# Reading pauses at either limit, and resumes below half of the first.
MAX_PENDING: Final = 1024
_MAX_UNREAD_BYTES: Final = 1 << 20

_EndStatus = tuple[Status, str]
_OK: Final[_EndStatus] = (Status.OK, "")


class InferStreams:
    """Open streams of one gateway."""

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
        # Makes metadata parameters of requests, if any is wanted.
        self.forwarding = forwarding
        self.turns = StreamTurns()
        self._open: set[_InferStream] = set()
        # Tasks that decode messages which are not decoded on arrival.
        self._tasks: set[asyncio.Task[None]] = set()

    def open_stream(self, call: Call, infer: Infer) -> None:
        """Serve a new call, whose requests are submitted by infer."""
        stream = _InferStream(self, call, infer)
        self._open.add(stream)
        call.on_message = stream.on_message
        call.on_half_close = stream.on_half_close
        call.on_writable = stream.on_writable
        call.on_cancel = stream.on_cancel

    def end_streams(self, status: Status, message: str) -> None:
        """Stop reading, and end each stream with this status once no request of it is pending."""
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
    """Request of a stream, with its replies."""

    __slots__ = ("_decoupled", "_stream", "ended", "handle", "request", "timer")

    def __init__(
        self, stream: _InferStream, request: InferRequest, timer: ResponseTimer | None
    ) -> None:
        super().__init__()
        self._stream = stream
        self.request = request
        # Timer of a request whose last response says where its time went.
        self.timer = timer
        # True once a response with `more` has shown that the model is decoupled.
        self._decoupled = False
        # The handle is `None` until infer() has returned, and after the request has ended: it
        # refers to on_response, a cycle that would keep the request's tensors until a garbage
        # collection.
        self.handle: RequestHandle | None = None
        # True once the request has had its last response or was cancelled.
        self.ended = False

    def on_response(self, response: InferResponse) -> None:
        """Send the reply for a response, and end the request with its last one."""
        stream, request = self._stream, self.request
        if stream.ended:
            return
        timings = ""
        if self.timer is not None and not response.more:
            self.timer.record(response)
            timings = self.timer.text()
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
        """Cancel the request, unless it has ended."""
        handle, self.handle = self.handle, None
        self.ended = True
        if handle is not None:
            handle.cancel()

    def set_flow(self, *, paused: bool) -> None:
        """Pause the model, or let it continue."""
        if self.handle is not None:
            self.handle.set_flow(paused=paused)


class _InferStream:
    """State of one call.

    Messages gather in `_unread` only as far as the client's flow-control window reaches.
    """

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
        # True if responses say where their requests' time went.
        self._timed = owner.data_plane.timed.include(call.get(HEADER))
        traceparent = call.get("traceparent")
        self._trace_context = b""
        if traceparent is not None:
            self._trace_context = trace_context.binary(traceparent, call.get("tracestate"))
        # Messages that came while reading was paused.
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self.reading_paused = False
        # Task that decodes the message that was read last.
        self._decoding: asyncio.Task[None] | None = None
        # Requests whose models wait for the client to read its replies.
        self._paused_requests: dict[_StreamRequest, None] = {}
        # Once it is set, nothing more is read, and the call ends with this status when no request
        # is pending.
        self.end_status: _EndStatus | None = None
        self._half_closed = False
        self.ended = False

    # --- events of the call ---------------------------------------------------------------------

    def on_message(self, message: bytes) -> None:
        """Submit a message, or keep it while reading is paused."""
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
        """End the call when its messages have been read and its requests have ended."""
        self._half_closed = True
        if not self.reading_paused:
            self.end(_OK)

    def on_cancel(self) -> None:
        """Cancel all requests of a call that ended early."""
        self.statuses[self._owner.early_end_status(self._call)] += 1
        self._cancel_requests()

    def on_writable(self) -> None:
        """Continue reading, and the paused models: the client has read most of its replies."""
        if self._paused_requests:
            paused, self._paused_requests = self._paused_requests, {}
            for request in paused:
                request.set_flow(paused=False)
        self.resume_reading()

    # --- for the requests -----------------------------------------------------------------------

    def send_reply(self, request: _StreamRequest, reply: bytes) -> None:
        """Send a reply that is not the last one of its request."""
        self.order.send_at_once(reply)
        if self._call.buffered_bytes > _MAX_UNREAD_BYTES and request not in self._paused_requests:
            self._paused_requests[request] = None
            request.set_flow(paused=True)

    def continue_reading(self) -> None:
        """Continue reading in a new turn of the event loop, which is all that was missing."""
        self.resume_reading(MAX_PENDING)

    def resume_reading(self, max_pending: int = MAX_PENDING // 2) -> None:
        """Continue reading, unless too many requests are pending or too many replies unread."""
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
        """Stop reading, and end with this status when no request is pending."""
        if self.end_status is None and not self.ended:
            self.end_status = end_status
            self._drop_unread()
            self.reading_paused = False
            if not self._half_closed:
                self._call.pause()
            self.end_if_finished()

    def end_if_finished(self) -> None:
        """End if that is due and no request is pending."""
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
        """End at once, and cancel pending requests."""
        self._cancel_requests()
        self._call.fail(status, message)

    # --- inside ---------------------------------------------------------------------------------

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
        received_ns = monotonic_ns() if self._timed or owner.data_plane.records_arrivals else 0
        try:
            request = owner.decoder.decode_now(message)
        except NereidError as error:
            # A message that cannot be parsed has no id to reply with.
            self.end((Status(error.code), error.message))
            return
        if request is None:
            # Nothing is read meanwhile, which keeps the order of requests.
            self._decoding = owner.spawn(self._decode_and_submit(message, received_ns))
        else:
            self._submit_request(request, received_ns)

    async def _decode_and_submit(self, message: bytes, received_ns: int) -> None:
        decoder = self._owner.decoder
        try:
            request = await decoder.decode_later(message, self._call, accepts_many=True)
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

    def _submit_request(self, request: InferRequest, received_ns: int) -> None:
        owner = self._owner
        request.accepts_many = True
        request.deadline = self._call.deadline
        request.sender = self._call.account
        request.trace_context = self._trace_context
        if owner.data_plane.records_arrivals:
            request.arrival = Arrival("grpc", received_ns, self._call, streamed=True)
        if owner.forwarding is not None:
            owner.forwarding.forward_headers(request, self._call.metadata)
        timer = start_timer(request, received_ns) if self._timed else None
        stream_request = _StreamRequest(self, request, timer)
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
            # The call has no effect on requests with a reply that waits to be sent.
            request.cancel()
        self.order.replies.clear()
        self._paused_requests.clear()
        self._drop_unread()
