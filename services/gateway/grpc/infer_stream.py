"""ModelStreamInfer: many requests on one call, without a task for any of them.

Reading stops while too many requests are unanswered or the client leaves its replies unread, and
goes on when that is over; models that have more to say to such a client are paused for as long.
Knows no scheduler; the order and form of replies are stream_replies'.
"""

from __future__ import annotations

from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from nereid.core.errors import NereidError
from nereid.rpc import Status
from nereid.services.gateway.grpc.stream_responses import Order, Turn, empty_final_reply, reply_to
from nereid.services.gateway.tracing import trace_context

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from nereid.core.messages import InferRequest, InferResponse
    from nereid.rpc import Call
    from nereid.services.gateway.data_plane import DataPlane, UnderWay
    from nereid.services.gateway.grpc.infer_codec import GrpcDecoder
    from nereid.services.gateway.policy.header_forwarding import HeaderForwarding

# Metadata by which a client wants a model's failure as the status of the call.
_STATUS_WANTED: Final = "triton_grpc_error"
# Reading stops at these, and goes on below the half of the first.
MOST_UNANSWERED: Final = 1024
_MOST_UNREAD_BYTES: Final = 1 << 20

_End = tuple[Status, str]
_OVER: Final[_End] = (Status.OK, "")


class InferStreams:
    """The streams that are open. `status_of` tells why a call ended early."""

    def __init__(
        self,
        data_plane: DataPlane,
        decoder: GrpcDecoder,
        statuses: MutableMapping[int, int],
        status_of: Callable[[Call], Status],
    ) -> None:
        self.data_plane = data_plane
        self.decoder = decoder
        self.statuses = statuses
        self.status_of = status_of
        # Makes metadata parameters; None: none is wanted.
        self.forwarding: HeaderForwarding | None = None
        self._open: set[_InferStream] = set()

    def open(self, call: Call) -> None:
        """Serve a new call."""
        stream = _InferStream(self, call)
        self._open.add(stream)
        call.on_message = stream.on_message
        call.on_half_close = stream.on_half_close
        call.on_writable = stream.on_writable
        call.on_cancel = stream.on_cancel

    def end(self, status: Status, message: str) -> None:
        """Take nothing more; each stream ends with this once what it took is answered."""
        for stream in list(self._open):
            stream.end((status, message))

    def forget(self, stream: _InferStream) -> None:
        """It has ended."""
        self._open.discard(stream)


class _Exchange(Turn):
    """One request of a stream and its replies."""

    __slots__ = ("_decoupled", "_request", "_stream", "under_way")

    def __init__(self, stream: _InferStream, request: InferRequest) -> None:
        super().__init__()
        self._stream = stream
        self._request = request
        # The model has said that it gives any number of answers.
        self._decoupled = False
        self.under_way: UnderWay | None = None

    def on_response(self, response: InferResponse) -> None:
        """One answer of the model, or its bare word whether there are more to come."""
        stream, request = self._stream, self._request
        if stream.ended:
            return
        error_status = response.error
        if error_status is not None or response.head:
            stream.statuses[0 if error_status is None else error_status.code] += 1
            if error_status is not None and response.head and stream.wants_status:
                stream.fail(Status(error_status.code), error_status.message)
                return
            reply = reply_to(response, request.request_id, not response.more)
        elif request.empty_final and not response.more:
            reply = empty_final_reply(request.head, request.request_id)
        else:
            reply = b""
        if response.more:
            self._decoupled = True
            stream.tell(self, reply)
            return
        if self._decoupled:
            stream.order.at_once(reply)
            reply = b""
        stream.order.last(self, reply)
        if stream.waits:
            stream.read_on()
        elif stream.last_words is not None:
            stream.settle()

    def cancel(self) -> None:
        if self.under_way is not None:
            self.under_way.cancel()

    def set_flow(self, *, paused: bool) -> None:
        """Stop the model for a while, or let it go on."""
        if self.under_way is not None:
            self.under_way.set_flow(paused=paused)


class _InferStream:
    """One call. Unread messages gather in `_unread` only as far as the client's window reaches."""

    __slots__ = (
        "_call",
        "_half_closed",
        "_owner",
        "_paused",
        "_trace_context",
        "_unread",
        "ended",
        "last_words",
        "order",
        "statuses",
        "waits",
        "wants_status",
    )

    def __init__(self, owner: InferStreams, call: Call) -> None:
        self._owner = owner
        self._call = call
        self.order = Order(call.send)
        self.statuses = owner.statuses
        self.wants_status = call.get(_STATUS_WANTED) == "true"
        traceparent = call.get("traceparent")
        self._trace_context = b"" if traceparent is None else trace_context.binary(traceparent)
        # Messages that came although reading had stopped.
        self._unread: deque[bytes] = deque()
        self.waits = False
        # Those whose models wait for the client to take what is there.
        self._paused: dict[_Exchange, None] = {}
        # What the call ends with once all is answered; from then on nothing is read.
        self.last_words: _End | None = None
        self._half_closed = False
        self.ended = False

    # --- from the client

    def on_message(self, message: bytes) -> None:
        if self.waits:
            self._unread.append(message)
        elif self.last_words is None:
            self._take(message)
            if self._is_full():
                self.waits = True
                self._call.pause()

    def on_half_close(self) -> None:
        self._half_closed = True
        if not self.waits:
            self.end(_OVER)

    def on_cancel(self) -> None:
        self.statuses[self._owner.status_of(self._call)] += 1
        self._give_up()

    def on_writable(self) -> None:
        """The client has taken most of what was there for it."""
        if self._paused:
            paused, self._paused = self._paused, {}
            for exchange in paused:
                exchange.set_flow(paused=False)
        self.read_on()

    # --- what follows

    def tell(self, exchange: _Exchange, reply: bytes) -> None:
        """A reply that is not the last one."""
        self.order.at_once(reply)
        if self._call.buffered_bytes > _MOST_UNREAD_BYTES and exchange not in self._paused:
            self._paused[exchange] = None
            exchange.set_flow(paused=True)

    def read_on(self) -> None:
        """Go on with what was left unread, if there is room by now."""
        if not self.waits or self._is_full(MOST_UNANSWERED // 2):
            return
        self.waits = False
        unread = self._unread
        while unread and self.last_words is None:
            self._take(unread.popleft())
            if self._is_full():
                self.waits = True
                return
        if self._half_closed:
            self.end(_OVER)
        elif self.last_words is None:
            self._call.resume()
        else:
            self.settle()

    def end(self, words: _End) -> None:
        """Take nothing more; end with these words when all that was taken is answered."""
        if self.last_words is None and not self.ended:
            self.last_words = words
            self._unread.clear()
            self.waits = False
            if not self._half_closed:
                self._call.pause()
            self.settle()

    def settle(self) -> None:
        """End if nothing is left to answer."""
        if self.last_words is not None and not self.order.turns and not self.ended:
            status, message = self.last_words
            if status:
                self.statuses[status] += 1
            self._finish(status, message)

    def fail(self, status: Status, message: str) -> None:
        """End at once; what is under way is given up."""
        self._give_up()
        self._call.fail(status, message)

    # --- inside

    def _take(self, message: bytes) -> None:
        owner = self._owner
        data_plane = owner.data_plane
        tracing = data_plane.tracing
        received_ns = 0 if tracing is None else monotonic_ns()
        try:
            request = owner.decoder.decode(message)
        except NereidError as error:
            # What is no request at all has no id to answer with.
            self.end((Status(error.code), error.message))
            return
        request.accepts_many = True
        request.deadline = self._call.deadline
        request.trace_context = self._trace_context
        if owner.forwarding is not None:
            owner.forwarding.add(request, self._call.metadata)
        exchange = _Exchange(self, request)
        self.order.enter(exchange)
        if tracing is None:
            exchange.under_way = data_plane.infer(request, exchange.on_response)
        else:
            exchange.under_way = tracing.infer(request, exchange.on_response, "grpc", received_ns)

    def _is_full(self, most: int = MOST_UNANSWERED) -> bool:
        return len(self.order.turns) >= most or self._call.buffered_bytes > _MOST_UNREAD_BYTES

    def _finish(self, status: Status, message: str) -> None:
        self.ended = True
        self._owner.forget(self)
        self._call.finish(status, message)

    def _give_up(self) -> None:
        self.ended = True
        self._owner.forget(self)
        for turn in self.order.turns:
            # Harmless for those that only wait for their turn.
            turn.cancel()
        self.order.turns.clear()
        self._paused.clear()
        self._unread.clear()
