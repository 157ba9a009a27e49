"""Server's side of gRPC on one HTTP/2 connection. The module does no I/O.

For speed, ServerCall.reply changes the sender's state directly: a unary call costs one ServerCall,
one look-up of the header block and one tuple of bytes.
"""

# layout: compiled

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from nereid.bounded_cache import BoundedCache
from nereid.rpc.grpc.arrivals import Arrivals
from nereid.rpc.grpc.call import CALL_SLOTS, fail_with, log
from nereid.rpc.grpc.compression import begin_deflation, compress
from nereid.rpc.grpc.messages import (
    ContentBehindInflation,
    MessageReader,
    MessageStream,
    send_message,
    send_message_parts,
)
from nereid.rpc.grpc.metadata import (
    encode_metadata,
    encode_status,
    encode_trailer,
    first_value,
    literal,
)
from nereid.rpc.grpc.request_headers import (
    CACHED_INDEXED_HEADERS,
    OVERSIZED,
    Refusal,
    RequestHeaders,
    RequestHeadersReader,
)
from nereid.rpc.grpc.status import RpcError, Status, status_of_over_budget
from nereid.rpc.http2 import frames
from nereid.rpc.http2.connection import Http2Connection
from nereid.rpc.http2.frames import Code, Http2ConnectionError, Http2StreamError
from nereid.rpc.http2.header_decoder import HeaderDecoder
from nereid.rpc.http2.sender import LOW_WATER_BYTES
from nereid.rpc.http2.stream import (
    AFTER_END_SENT,
    CLOSED,
    HALF_CLOSED_REMOTE,
    LOCAL_CLOSED,
    REMOTE_CLOSED,
    Stream,
)
from nereid.rpc.net.address import client_of
from nereid.rpc.net.limits.budget import NO_ACCOUNT, OverBudgetError
from nereid.rpc.net.limits.stall_detection import StallWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nereid.rpc.grpc.call import Call
    from nereid.rpc.grpc.deadlines import Deadlines
    from nereid.rpc.grpc.handlers import AsyncUnaryHandler, Route
    from nereid.rpc.grpc.messages import AllocateBuffer, MessageBuffer, PartialMessage
    from nereid.rpc.http2.header_decoder import Field
    from nereid.rpc.http2.limits import Limits
    from nereid.rpc.net.deflation import Deflation
    from nereid.rpc.net.inflation import Inflation
    from nereid.rpc.net.limits.budget import Account, ByteBudget

    WriteThrough = Callable[["ServerCall", bytes], None]

# HPACK's static table: entry 8 is :status 200, entry 31 names content-type.
_HEAD_BLOCK: Final = b"\x88" + b"\x0f\x10\x10application/grpc"
_OK_BLOCK: Final = literal(b"grpc-status", b"0")

# Packs a HEADERS frame, a DATA frame's header and the message's prefix.
_pack_response: Final = Struct(f">BHBBI{len(_HEAD_BLOCK)}sBHBBIBI").pack
_pack_ok_trailers: Final = Struct(f">BHBBI{len(_OK_BLOCK)}s").pack
_HEAD_SIZE: Final = len(_HEAD_BLOCK)
_OK_SIZE: Final = len(_OK_BLOCK)
_TRAILERS_FLAGS: Final = frames.END_HEADERS | frames.END_STREAM
# Units of the flood budget. An oversized block may have thousands of fields, and decoding them
# takes milliseconds.
_OVERSIZED_COST: Final = 20.0
_REFUSAL_COST: Final = 0.1
_TINY_PIECE_COST: Final = 0.2
_TRAILERS_COST: Final = 1.0
# A message up to this size is not charged while its request arrives.
_UNCHARGED_BYTES: Final = 4096
# Compressing this many bytes at once takes a fraction of a millisecond.
_INLINE_COMPRESSION_BYTES: Final = 4096
# Bits: reasons not to reopen a stream's window.
_PAUSED_BY_HANDLER: Final = 1
_PAUSED_BY_INFLATION: Final = 2


class ServerContext:
    """State and functions that all connections of a server share."""

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        routes: dict[str, Route],
        deadlines: Deadlines[ServerCall],
        *,
        now: Callable[[], float],
        spawn: Callable[[Call, AsyncUnaryHandler, bytes], None],
        on_earlier_deadline: Callable[[], None],
        compression: str = "none",
        budget: ByteBudget | None = None,
        inflate: Callable[[ServerCall, Inflation], None] | None = None,
        deflate: Callable[[CompressingCall], None] | None = None,
        admit: Callable[[Call], None] | None = None,
    ) -> None:
        """Create the context.

        inflate begins to inflate a message, and later calls on_inflated() of the call's connection.
        deflate begins to compress waiting messages. For each one it calls begin_deflation(), and
        later send_deflated(). Without these two functions, the work is done at once.
        """
        self.budget = budget
        self.inflate = inflate
        self.deflate = deflate
        self.routes = routes
        self.headers: BoundedCache[tuple[Field | None, ...], RequestHeaders] = BoundedCache(
            CACHED_INDEXED_HEADERS
        )
        self.deadlines = deadlines
        self.now = now
        self.spawn = spawn
        self.on_earlier_deadline = on_earlier_deadline
        self.compression = compression
        self.admit = admit


class ServerCall(MessageStream):
    """Call (see call.Call) on our own engine."""

    __slots__ = (*CALL_SLOTS, "connection", "head_sent", "message", "route")

    # Attributes of Call. This class does not derive from Call.
    path: str
    peer: str
    metadata: Sequence[tuple[str, str | bytes]]
    deadline: float | None
    on_cancel: Callable[[], None] | None
    on_message: Callable[[bytes], None] | None
    on_half_close: Callable[[], None] | None
    on_writable: Callable[[], None] | None
    done: bool
    held_bytes: int

    def __init__(
        self, connection: ServerConnection, stream_id: int, headers: RequestHeaders
    ) -> None:
        Stream.__init__(self, stream_id, connection.sender.peer_initial_window)
        self.connection = connection
        self.encoding = headers.encoding
        self.partial_message = None
        self.remaining_content_bytes = headers.content_length
        # Set here, not in a base class, for speed.
        self.path = headers.path
        self.peer = connection.peer
        self.metadata = headers.metadata
        self.deadline = None
        self.done = False
        self.held_bytes = 0
        self.on_cancel = None
        self.on_message = None
        self.on_half_close = None
        self.on_writable = None
        self.head_sent = False
        # Bytes, or the buffer that was allocated; `None` until the message has arrived.
        self.message: Any = None
        self.route: Route | None = headers.route

    @property
    def is_arriving(self) -> bool:
        """True if a request or message of the client has begun to arrive and is not complete."""
        if (
            self.done
            or self.state & REMOTE_CLOSED
            or isinstance(self.partial_message, ContentBehindInflation)
        ):
            return False
        if self.route is None or self.route.stream is None:
            return self.route is not None
        # Between two messages of a stream, a client need not send anything.
        return self.partial_message is not None and not self.paused

    @property
    def is_unary(self) -> bool:
        """True if the method of the call is unary."""
        return self.route is not None and self.route.stream is None

    @property
    def client(self) -> str:
        """Client to which the connection belongs (net.address.client_of)."""
        return self.connection.client

    @property
    def buffered_bytes(self) -> int:
        """Sent bytes that wait for the client's window or the socket."""
        return self.queued_bytes

    @property
    def account(self) -> Account:
        """Account to which the client's bytes are charged."""
        return self.connection.account

    def hold(self, size_bytes: int) -> None:
        """Charge bytes that are kept for the client; raise RpcError if they exceed a limit."""
        if self.done:
            raise RpcError(Status.CANCELLED, "the call is over")
        try:
            self.connection.account.charge(size_bytes, self.held_bytes)
        except OverBudgetError as error:
            raise RpcError(status_of_over_budget(error), error.message) from None
        self.held_bytes += size_bytes

    def release(self) -> None:
        """Release the charge of hold()."""
        held_bytes, self.held_bytes = self.held_bytes, 0
        if held_bytes:
            self.connection.account.release(held_bytes)

    @property
    def peer_names(self) -> tuple[str, ...]:
        """Names in the client's certificate; empty without a certificate."""
        return self.connection.peer_names

    @property
    def peer_is_local(self) -> bool:
        """True if the client's address shows that the client is on this host."""
        return self.connection.peer_is_local

    @property
    def local(self) -> str:
        """Address at which the call arrived."""
        return self.connection.local

    def set_keepalive(self, interval_s: float | None, timeout_s: float) -> None:
        """Replace the server's keepalive options for this connection; see Call.set_keepalive."""
        self.connection.http2.control.keepalive.set_limits(interval_s, timeout_s)

    def claim_connection(self) -> None:
        """Refuse further calls of this connection; see Call.claim_connection."""
        self.connection.is_claimed = True

    def reply(self, message: bytes) -> None:
        """Send the response and end the call with OK, if possible in one write."""
        if self.done:
            return
        connection = self.connection
        sender = connection.sender
        state = self.state
        size = len(message) + 5
        if (
            size > sender.max_direct_bytes
            or size > self.send_window
            or size > sender.send_window
            or self.head_sent
            or state is not HALF_CLOSED_REMOTE
        ):
            self.send(message)
            self.finish()
            return
        self.done = True
        self.state = AFTER_END_SENT[state]
        if self.deadline is not None:
            connection.context.deadlines.discard_deadline(self, self.deadline)
        if self.held_bytes:
            self.release()
        sender.send_window -= size
        stream_id = self.id
        streams = connection.streams
        del streams[stream_id]
        if streams and not sender.out:
            sender.wake()
        sender.out += (
            _pack_response(
                *(0, _HEAD_SIZE, 1, 4, stream_id, _HEAD_BLOCK),
                *(0, size, 0, 0, stream_id, 0, size - 5),
            ),
            message,
            _pack_ok_trailers(0, _OK_SIZE, 1, _TRAILERS_FLAGS, stream_id, _OK_BLOCK),
        )
        self.on_cancel = None
        if not streams:
            # No other response can join this write, so write at once.
            connection.flush()

    def reply_parts(
        self,
        parts: Sequence[bytes | memoryview],
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """Send a response that is given in parts, and end the call with OK."""
        if not self.done:
            self.accept()
            send_message_parts(self.connection.sender, self, parts)
            self.finish(trailers=trailers)

    def accept(self) -> None:
        """Send the headers of the response."""
        if not self.head_sent and not self.done:
            self.head_sent = True
            self.connection.sender.write_headers(self.id, _HEAD_BLOCK)

    def send(self, message: bytes, at_once: bool = False) -> None:
        """Send one message; see Call.send. The headers are sent before the first one."""
        if at_once:
            self.connection.write_through(self, message)
        elif not self.done:
            self.accept()
            send_message(self.connection.sender, self, message)

    def finish(
        self,
        status: Status = Status.OK,
        message: str = "",
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """End the call with a status and trailers."""
        if self.done:
            return
        block = b"" if self.head_sent else _HEAD_BLOCK
        if status == Status.OK and not trailers and not message:
            block += _OK_BLOCK
        else:
            block += encode_status(status, message)
            if trailers:
                block += self._encode_trailers(trailers)
        self._end(block)

    def refuse(self, refusal: Refusal) -> None:
        """End the call without running a handler."""
        if refusal.http_status == 200:
            self.finish(refusal.status, refusal.message, refusal.trailers)
            return
        self._end(refusal.block())

    def pause(self) -> None:
        """Stop reopening the stream's flow-control window, so that the client has to pause."""
        self.paused |= _PAUSED_BY_HANDLER

    def resume(self) -> None:
        """Reopen the stream's flow-control window after pause()."""
        self.reopen_window(_PAUSED_BY_HANDLER)

    def reopen_window(self, reason: int) -> None:
        """Remove a reason not to reopen the window. If no reason is left, reopen the window."""
        if self.paused & reason:
            self.paused &= ~reason
            if not self.state & REMOTE_CLOSED:
                self.connection.http2.receiver.reopen_stream_window(self)

    def get(self, key: str) -> str | bytes | None:
        """Return the first value of a metadata key, or None."""
        return first_value(self.metadata, key)

    def fail(
        self, status: Status, message: str, trailers: Iterable[tuple[str, str | bytes]] = ()
    ) -> None:
        """End the call with an error status."""
        self.finish(status, message, trailers)

    def fail_with(self, error: Exception) -> None:
        """End the call because its handler raised `error`."""
        fail_with(self, error)

    def run_callback(self, callback: Callable[..., None], *args: object) -> None:
        """Run a handler or one of its callbacks. An exception ends the call."""
        try:
            callback(*args)
        except Exception as error:
            self.fail_with(error)

    def cancel(self) -> None:
        """End the call after the client has reset it or the connection is lost; call on_cancel."""
        if not self.done:
            callback = self.on_cancel
            self.mark_done()
            if callback is not None:
                self.run_callback(callback)

    def notify_writable(self) -> None:
        """Tell the handler that buffered bytes have been sent."""
        if self.on_writable is not None and not self.done:
            self.run_callback(self.on_writable)

    def mark_done(self) -> None:
        """Do what Call.mark_done() does, discard the deadline and release the charge."""
        self.done = True
        self.on_cancel = self.on_message = self.on_half_close = self.on_writable = None
        if self.deadline is not None:
            self.connection.context.deadlines.discard_deadline(self, self.deadline)
        if self.held_bytes:
            self.release()

    def expire(self) -> None:
        """End the call because its deadline passed."""
        if not self.done:
            callback = self.on_cancel
            self.on_cancel = None
            self.fail(Status.DEADLINE_EXCEEDED, "the deadline passed")
            if callback is not None:
                self.run_callback(callback)

    def _end(self, block: bytes) -> None:
        self.mark_done()
        self.connection.sender.end_stream(self, block)

    def _encode_trailers(self, trailers: Iterable[tuple[str, str | bytes]]) -> bytes:
        try:
            if type(trailers) is tuple and len(trailers) == 1:
                return encode_trailer(*trailers[0])
            return encode_metadata(trailers)
        except ValueError:
            # The call must end even if its handler gives invalid trailers.
            log.exception("%s: trailers that cannot be sent are left out", self.path)
            return b""


class CompressingCall(ServerCall):
    """Call whose client accepts compression. A message is compressed if that makes it smaller.

    Large messages wait until they are compressed elsewhere. Later messages wait behind them. The
    call may be done before all waiting messages are sent.
    """

    __slots__ = ("_ending", "_reply_encoding", "_waiting_bytes", "waiting")

    def __init__(
        self, connection: ServerConnection, stream_id: int, headers: RequestHeaders
    ) -> None:
        super().__init__(connection, stream_id, headers)
        self._reply_encoding = headers.reply_encoding or "identity"
        # Messages to compress, each as a sequence of parts.
        self.waiting: deque[Sequence[bytes | memoryview]] = deque()
        self._waiting_bytes = 0
        # Trailers to send after the waiting messages; `None` if the call has not ended.
        self._ending: bytes | None = None

    def reply(self, message: bytes) -> None:
        """Send the response, compressed if that makes it smaller, and end the call with OK."""
        self.send(message)
        self.finish()

    def reply_parts(
        self,
        parts: Sequence[bytes | memoryview],
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """Send a response that is given in parts, and end the call with OK."""
        self._send_parts(parts)
        self.finish(trailers=trailers)

    def accept(self) -> None:
        """Send the headers of the response, which name the encoding."""
        if not self.head_sent and not self.done:
            self.head_sent = True
            block = _HEAD_BLOCK + literal(b"grpc-encoding", self._reply_encoding.encode())
            self.connection.sender.write_headers(self.id, block)

    def send(self, message: bytes, at_once: bool = False) -> None:  # noqa: ARG002 - as ServerCall
        """Send one message, or keep it until it has been compressed."""
        self._send_parts((message,))

    def begin_deflation(self) -> Deflation | None:
        """Begin to compress the next waiting message; return None if no message waits."""
        return begin_deflation(self._reply_encoding, self.waiting[0]) if self.waiting else None

    def send_deflated(self, compressed: bytes) -> None:
        """Send the first waiting message, compressed if that is smaller."""
        parts = self.waiting.popleft()
        self._waiting_bytes -= sum(map(len, parts))
        self._send_smaller(parts, compressed)
        if self.waiting:
            return
        if self._ending is not None:
            self.connection.sender.end_stream(self, self._ending)
        elif self.queue is None:
            self.notify_writable()

    @property
    def buffered_bytes(self) -> int:
        """Sent bytes that wait for compression, the client's window or the socket."""
        return self.queued_bytes + self._waiting_bytes

    def notify_writable(self) -> None:
        """Tell the handler that it may send more, if few bytes wait for compression."""
        if self._waiting_bytes <= LOW_WATER_BYTES:
            super().notify_writable()

    def discard_partial_input(self) -> None:
        """Drop the partly received message; if the stream is closed, also the waiting ones."""
        super().discard_partial_input()
        if self.state is CLOSED:
            self.waiting.clear()
            self._waiting_bytes = 0

    def _send_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        if self.done:
            return
        self.accept()
        size = sum(map(len, parts))
        deflate = self.connection.context.deflate
        if deflate is None or (not self.waiting and size <= _INLINE_COMPRESSION_BYTES):
            self._send_smaller(parts, compress(self._reply_encoding, parts))
            return
        self.waiting.append(parts)
        self._waiting_bytes += size
        if len(self.waiting) == 1:
            deflate(self)

    def _send_smaller(self, parts: Sequence[bytes | memoryview], compressed: bytes) -> None:
        if len(compressed) < sum(map(len, parts)):
            send_message(self.connection.sender, self, compressed, 1)
        else:
            send_message_parts(self.connection.sender, self, parts)

    def _end(self, block: bytes) -> None:
        if self.waiting:
            self.mark_done()
            self._ending = block
        else:
            super()._end(block)


def _send_later(call: ServerCall, message: bytes) -> None:
    call.send(message)


class ServerConnection:
    """One client's connection: the handler of HTTP/2 events and of messages."""

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        limits: Limits,
        context: ServerContext,
        peer: str,
        *,
        wake: Callable[[], None],
        write_through: WriteThrough | None = None,
        flush: Callable[[], None] | None = None,
        peer_names: tuple[str, ...] = (),
        peer_is_local: bool = False,
        local: str = "",
    ) -> None:
        """Create the connection; `wake` is called when there is output.

        Without write_through and flush, output is written only at the end of a turn.
        """
        self.context = context
        self.write_through: WriteThrough = write_through or _send_later
        self.flush: Callable[[], None] = flush or wake
        self.peer = peer
        self.client = client_of(peer)
        budget = context.budget
        self.account = NO_ACCOUNT if budget is None else budget.open_account(self.client)
        self._reader: MessageReader[ServerCall] = MessageReader(
            limits.max_message_bytes, self, limits.max_inflation_ratio
        )
        self.peer_names = peer_names
        self.peer_is_local = peer_is_local
        self.local = local
        self.http2: Http2Connection[ServerCall] = Http2Connection(
            limits,
            self,
            self._reader,
            server=True,
            wake=wake,
            on_queued=None if budget is None else self.account.set_unread,
        )
        self.sender = self.http2.sender
        self.streams = self.http2.streams.open
        self._limits = limits
        self._control = self.http2.control
        self._receiver = self.http2.receiver
        self._table = self.http2.streams
        self._headers = RequestHeadersReader(
            HeaderDecoder(limits.max_header_list_bytes),
            context.routes,
            context.headers,
            context.compression,
            self._control.budget.spend,
        )
        self._max_streams = limits.max_concurrent_streams
        # True after a call has claimed the connection for itself.
        self.is_claimed = False
        self._unread: dict[int, StallWatch] = {}
        self._arrivals = Arrivals(limits, self.streams, self._receiver)

    def connection_lost(self) -> None:
        """Cancel all calls and close the client's account, because the connection was lost."""
        for call in self.http2.connection_lost():
            call.cancel()
        self.account.close()

    def on_inflated(self, call: ServerCall, result: bytes | MessageBuffer | RpcError) -> None:
        """Deliver a message that was inflated elsewhere, or fail the call with an error."""
        if call.done:
            return
        if isinstance(result, RpcError):
            call.partial_message = None
            self.on_bad_message(call, result)
            return
        held = self._reader.resume(call, result)
        if held.ended and not call.state & LOCAL_CLOSED:
            self.on_end(call)
        if not isinstance(call.partial_message, ContentBehindInflation):
            call.reopen_window(_PAUSED_BY_INFLATION)

    def end_unread_responses(self, now: float) -> None:
        """End calls whose responses wait too long because the client opens no window.

        The method checks unary calls, and streams with more unsent bytes than a stream's window.
        """
        watches = {}
        large_bytes = self._limits.stream_window_bytes
        large = [call for call in self.streams.values() if call.queued_bytes > large_bytes]
        for call in dict.fromkeys((*self._unread_calls(), *large)):
            watch = self._unread.get(call.id) or StallWatch(self._limits.write_timeout_s)
            if watch.stalled(call.queued_bytes, now):
                self.sender.reset_stream(call, Code.CANCEL)
                call.cancel()
            else:
                watches[call.id] = watch
        self._unread = watches

    def end_incomplete_requests(self, now: float) -> None:
        """End calls whose requests or messages arrive too slowly."""
        for call in self._arrivals.overdue_calls(now):
            call.fail(Status.DEADLINE_EXCEEDED, "the request did not arrive in time")
        if self._arrivals.unfinished_too_long(now):
            unfinished = "a frame or header block was not completed in time"
            self._control.fail(Http2ConnectionError(Code.ENHANCE_YOUR_CALM, unfinished))

    def _unread_calls(self) -> list[ServerCall]:
        waiting = [call for call in self.streams.values() if call.trailers is not None]
        return [call for call in waiting if call.route is None or call.route.stream is None]

    def on_headers(self, stream_id: int, block: bytes, ended: int) -> None:
        """Handle the headers or trailers of a request; `ended` is nonzero if END_STREAM was set."""
        if stream_id <= self._table.last_id:
            self._on_trailers(stream_id, block, ended)
            return
        headers = self._admit(stream_id, block)
        if headers is None:
            self.sender.refuse_stream(stream_id, Code.REFUSED_STREAM)
            return
        kind = ServerCall if headers.reply_encoding is None else CompressingCall
        call = kind(self, stream_id, headers)
        self.streams[stream_id] = call
        if ended:
            call.state = HALF_CLOSED_REMOTE
        if headers.refusal is not None:
            call.refuse(headers.refusal)
            return
        if self.context.admit is not None:
            call.run_callback(self.context.admit, call)
            if call.done:
                return
        if headers.timeout_s is not None:
            self._set_deadline(call, headers.timeout_s)
        if headers.route.stream is not None:
            call.run_callback(headers.route.stream, call)
        if ended and not call.state & LOCAL_CLOSED:
            self.http2.receiver.finish_remote(call)

    def on_end(self, stream: ServerCall) -> None:
        """Handle the end of a request: run its handler, or report a half-closed stream."""
        if stream.done:
            return
        if stream.partial_message is not None:
            self._on_end_within_message(stream, stream.partial_message)
            return
        route = stream.route
        assert route is not None
        try:
            if route.stream is not None:
                if stream.on_half_close is not None:
                    stream.on_half_close()
                return
            message = stream.message
            if message is None:
                stream.fail(Status.UNIMPLEMENTED, "no request message")
                return
            stream.message = None
            if route.unary is not None:
                route.unary(stream, message)
            elif route.coroutine is not None:
                self._charge_whole_message(stream, message)
                self.context.spawn(stream, route.coroutine, message)
        except Exception as error:
            stream.fail_with(error)

    def _on_end_within_message(
        self, call: ServerCall, partial: PartialMessage | ContentBehindInflation
    ) -> None:
        if isinstance(partial, ContentBehindInflation):
            partial.ended = True
        else:
            call.fail(Status.INTERNAL, "a cut-off message")

    def on_reset(self, stream: ServerCall, code: int) -> None:  # noqa: ARG002 (any reason)
        """Cancel a call that the client has reset."""
        stream.cancel()

    def on_half_closed(self, stream: ServerCall) -> None:
        """Reset a call that ended early, because the rest of its request is not needed."""
        self.sender.reset_stream(stream, Code.NO_ERROR)

    def on_settings(self) -> None:
        """Do nothing: no call waits for the settings of a client."""

    def on_goaway(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """Do nothing: a client that leaves finishes its calls, then closes the connection."""

    def may_reopen_window(self) -> bool:
        """Return False while the client leaves too many bytes of unary responses unread."""
        limit = self._limits.max_unsent_bytes
        return limit is None or sum(call.queued_bytes for call in self._unread_calls()) <= limit

    def on_message(self, stream: ServerCall, message: Any) -> None:
        """Pass a message to its handler, or keep the message until the request ends."""
        if stream.done:
            return
        if stream.on_message is not None:
            try:
                stream.on_message(message)
            except Exception as error:
                stream.fail_with(error)
            if stream.held_bytes:
                stream.release()
        elif stream.message is None:
            stream.message = message
            if not self._receiver.frame_ends:
                self._charge_whole_message(stream, message)
        elif stream.route is None or stream.route.stream is None:
            stream.fail(Status.UNIMPLEMENTED, "more than one request message")

    def _charge_whole_message(self, call: ServerCall, message: Any) -> None:
        if not call.held_bytes and len(message) > _UNCHARGED_BYTES:
            call.hold(len(message))

    def on_bad_message(self, stream: ServerCall, error: RpcError) -> None:
        """Fail a call whose content is invalid or too large."""
        stream.fail(error.status, error.message)

    def on_tiny_piece(self) -> None:
        """Charge the flood budget for a tiny piece."""
        self._control.budget.spend(_TINY_PIECE_COST)

    def on_many_messages(self) -> None:
        """Leave further frames for a later turn, so that other connections are served."""
        self._receiver.end_turn()

    def allocator_of(self, stream: ServerCall) -> AllocateBuffer | None:
        """Return the allocator of the call's route; None means that messages are bytes."""
        return None if stream.done or stream.route is None else stream.route.allocate

    def defer_inflation(self, stream: ServerCall, inflation: Inflation) -> bool:
        """Have a message inflated elsewhere. Until then the stream's window stays closed."""
        if self.context.inflate is None or stream.done:
            return False
        stream.hold(inflation.inflated_bytes)
        stream.paused |= _PAUSED_BY_INFLATION
        self.context.inflate(stream, inflation)
        return True

    def _admit(self, stream_id: int, block: bytes) -> RequestHeaders | None:
        """Return the headers of a new request, or None to refuse the request."""
        if not stream_id & 1:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "HEADERS on an even stream")
        if self.is_claimed:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "a second call on a claimed connection")
        if self._control.refusing:
            # The id is above our GOAWAY's last id. Refuse the stream and ignore later frames.
            self._table.last_refused_id = max(self._table.last_refused_id, stream_id)
            self._headers.skip(block)
            return None
        self._table.last_id = stream_id
        headers = self._headers.read(block)
        if headers is OVERSIZED:
            self._control.budget.spend(_OVERSIZED_COST)
        if len(self.streams) >= self._max_streams:
            self._control.budget.spend(_REFUSAL_COST)
            return None
        return headers

    def _on_trailers(self, stream_id: int, block: bytes, ended: int) -> None:
        call = self.streams.get(stream_id)
        if call is None:
            if not stream_id & 1:
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "HEADERS on an even stream")
            self._headers.skip(block)
            if not self._table.was_reset_here(stream_id):
                raise Http2ConnectionError(Code.STREAM_CLOSED, "HEADERS on a closed stream")
            return
        self._control.budget.spend(_TRAILERS_COST)
        self._headers.check_trailers(block)
        if call.state & REMOTE_CLOSED:
            raise Http2StreamError(Code.STREAM_CLOSED, "HEADERS after the end of a stream")
        if not ended:
            raise Http2StreamError(Code.PROTOCOL_ERROR, "trailers that do not end the stream")
        self.http2.receiver.end_remote(call)

    def _set_deadline(self, call: ServerCall, timeout_s: float) -> None:
        context = self.context
        call.deadline = context.now() + timeout_s
        if context.deadlines.add_deadline(call, call.deadline):
            context.on_earlier_deadline()
