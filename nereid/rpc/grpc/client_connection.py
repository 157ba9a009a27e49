"""Client's side of gRPC on one HTTP/2 connection, without I/O or a clock."""

# layout: compiled

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from nereid.bounded_cache import BoundedCache
from nereid.rpc.grpc.messages import MessageReader, MessageStream, send_message
from nereid.rpc.grpc.metadata import (
    decode_message,
    decode_pairs,
    encode_metadata,
    format_timeout,
    literal,
    literal_at,
)
from nereid.rpc.grpc.status import (
    ConnectionLostError,
    NotProcessedError,
    RpcError,
    Status,
    status_of_http,
    status_of_reset,
)
from nereid.rpc.http2 import frames
from nereid.rpc.http2.connection import Http2Connection
from nereid.rpc.http2.frames import Code, Http2ConnectionError, Http2StreamError
from nereid.rpc.http2.header_decoder import Field, HeaderDecoder
from nereid.rpc.http2.stream import LOCAL_CLOSED, REMOTE_CLOSED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.rpc.grpc.messages import AllocateBuffer
    from nereid.rpc.http2.limits import Limits
    from nereid.rpc.net.inflation import Inflation

log = logging.getLogger("nereid.rpc")

_CACHED_BLOCKS: Final = 64
# Maximum until the server's settings arrive (RFC 9113 6.5.2 recommends at least 100).
_STREAMS_BEFORE_SETTINGS: Final = 100
_RESERVED: Final = frozenset(
    (b"content-type", b"grpc-status", b"grpc-message", b"grpc-encoding", b"grpc-accept-encoding")
)
_INFORMATIONAL: Final = range(100, 200)
_HTTP_OK: Final = 200
_NO_STATUS: Final = "the response has no grpc-status"


def request_block(
    path: str,
    authority: str,
    metadata: Iterable[tuple[str, str | bytes]],
    *,
    secure: bool = False,
    timeout_s: float | None = None,
) -> bytes:
    """Encode a request's header block of literals only, so that every connection can share it."""
    block = (
        (b"\x83\x87" if secure else b"\x83\x86")
        + literal_at(4, path.encode("ascii"))
        + literal_at(1, authority.encode("ascii", "replace"))
        + literal(b"te", b"trailers")
        + literal_at(31, b"application/grpc")
        + literal_at(58, b"nereid-rpc")
        + literal(b"grpc-accept-encoding", b"identity,deflate,gzip")
        + encode_metadata(metadata)
    )
    if timeout_s is not None:
        block += literal(b"grpc-timeout", format_timeout(timeout_s))
    return block


class ClientStream(MessageStream):
    """One call on the client's side. Messages are queued until the stream has a connection.

    `on_close` is called once, with None for OK. No callback is called after cancel().
    """

    __slots__ = (
        "_half_closed",
        "_unsent",
        "block",
        "connection",
        "done",
        "leave_queue",
        "on_close",
        "on_message",
        "on_open",
        "on_writable",
        "opened",
        "outcome",
        "sign",
    )

    # Unset until a connection begins the stream.
    connection: ClientConnection

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        block: bytes,
        on_message: Callable[[bytes], None],
        on_close: Callable[[RpcError | None], None],
        on_open: Callable[[], None] | None = None,
        on_writable: Callable[[], None] | None = None,
        *,
        sign: Callable[[], bytes] | None = None,
    ) -> None:
        """Create a call; `sign` encodes the credentials as header fields when the call begins."""
        super().__init__(0, 0)
        self.encoding = "identity"
        self.partial_message = None
        self.block = block
        self.on_message = on_message
        self.on_close = on_close
        self.on_open = on_open
        self.on_writable = on_writable
        # Removes the stream from the channel's queue; `None` if it is not queued.
        self.leave_queue: Callable[[ClientStream], None] | None = None
        self.sign = sign
        self.opened = False
        self.done = False
        self.outcome: RpcError | None = None
        self._unsent: list[bytes] = []
        self._half_closed = False

    @property
    def buffered_bytes(self) -> int:
        """Sent bytes that wait for the connection, the window or the socket."""
        return self.queued_bytes

    def begin(self, connection: ClientConnection, stream_id: int) -> None:
        """Set the connection, which has opened the stream, and send the queued messages."""
        self.connection = connection
        self.id = stream_id
        self.leave_queue = None
        self.send_window = connection.sender.peer_initial_window
        self.queued_bytes = 0
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            send_message(connection.sender, self, message)
        if self._half_closed:
            connection.sender.end_stream(self)

    def send(self, message: bytes) -> None:
        """Send a message, or queue it until there is a connection; no-op after the end."""
        if self.done or self._half_closed:
            return
        if self.id:
            send_message(self.connection.sender, self, message)
        else:
            self._unsent.append(message)
            self.queued_bytes += len(message) + 5

    def half_close(self) -> None:
        """End the client's side after the messages that were sent."""
        if not self.done and not self._half_closed:
            self._half_closed = True
            if self.id:
                self.connection.sender.end_stream(self)

    def cancel(self) -> None:
        """Reset the stream, or leave the channel's queue. No callback is called after this."""
        if self.done:
            return
        self.done = True
        if self.id:
            self.connection.sender.reset_stream(self, Code.CANCEL)
            self.connection.on_stream_slot()
        elif self.leave_queue is not None:
            self.leave_queue(self)
        self._release_callbacks()

    def pause(self) -> None:
        """Stop reopening the server's flow-control window, so that the server has to pause."""
        self.paused = True

    def resume(self) -> None:
        """Reopen the server's flow-control window after pause()."""
        if self.paused:
            self.paused = False
            if self.id and not self.state & REMOTE_CLOSED:
                self.connection.http2.receiver.reopen_stream_window(self)

    def notify_writable(self) -> None:
        """Tell the owner that buffered bytes have been sent."""
        if self.on_writable is not None and not self.done:
            self.on_writable()

    def close(self, error: RpcError | None) -> None:
        """End the call and report the end to its owner, once. The error is None for OK."""
        if not self.done:
            self.done = True
            on_close = self.on_close
            self._release_callbacks()
            on_close(error)

    def _release_callbacks(self) -> None:
        """Break the reference cycle between stream and owner."""
        self.on_open = self.on_writable = self.leave_queue = None
        self.on_close = self.on_message = _ignore
        self._unsent = []


def _ignore(_what: object) -> None:
    pass


class ClientConnection:
    """One connection to a server: the handler of HTTP/2 events and of messages."""

    def __init__(
        self,
        limits: Limits,
        *,
        wake: Callable[[], None],
        on_stream_slot: Callable[[], None],
    ) -> None:
        """Create the connection; `on_stream_slot` is called when another stream may start."""
        self.leaving = False
        self.on_stream_slot = on_stream_slot
        self.http2: Http2Connection[ClientStream] = Http2Connection(
            limits,
            self,
            MessageReader(limits.max_message_bytes, self),
            server=False,
            wake=wake,
        )
        self.sender = self.http2.sender
        self.streams = self.http2.streams.open
        self._control = self.http2.control
        self._table = self.http2.streams
        self._decoder = HeaderDecoder(limits.max_header_list_bytes)
        self._blocks: BoundedCache[bytes, list[Field]] = BoundedCache(_CACHED_BLOCKS)

    @property
    def settled(self) -> bool:
        """True if the server's settings have arrived. They show that the server speaks HTTP/2."""
        return self._control.settled

    @property
    def has_stream_slot(self) -> bool:
        """True if the server's limit of streams allows another one."""
        limit = self._control.peer_max_streams
        if limit is None:
            limit = frames.MAX_STREAM_ID if self.settled else _STREAMS_BEFORE_SETTINGS
        return len(self.streams) < limit

    @property
    def usable(self) -> bool:
        """True if new streams may be started on this connection."""
        return (
            not self.leaving
            and self._control.error is None
            and self._table.last_id < frames.MAX_STREAM_ID - 2
        )

    def start(self, stream: ClientStream) -> None:
        """Open a stream. The connection must be usable and have a stream slot."""
        stream_id = self._table.last_id = (self._table.last_id + 1) | 1
        self.streams[stream_id] = stream
        block = stream.block if stream.sign is None else stream.block + stream.sign()
        self.sender.write_headers(stream_id, block)
        stream.begin(self, stream_id)

    def connection_lost(self, because: str = "") -> None:
        """Fail all open streams, because the transport was closed."""
        error = self._control.error
        why = f"connection lost{because}" if error is None else error.message
        for stream in self.http2.connection_lost():
            stream.close(ConnectionLostError(Status.UNAVAILABLE, why))

    def on_headers(self, stream_id: int, block: bytes, ended: int) -> None:
        """Handle response headers or trailers; `ended` is nonzero if END_STREAM was set."""
        stream = self.streams.get(stream_id)
        fields = self._decode(block)
        if stream is None:
            if self._table.is_idle(stream_id):
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "HEADERS on an idle stream")
            return
        if stream.state & REMOTE_CLOSED:
            raise Http2StreamError(Code.STREAM_CLOSED, "HEADERS after the end of a stream")
        if not stream.opened:
            self._on_response_head(stream, fields, ended)
        elif ended:
            stream.outcome = outcome_of(fields)
            stream.partial_message = None
        else:
            raise Http2StreamError(Code.PROTOCOL_ERROR, "trailers that do not end the stream")
        if ended:
            self.http2.receiver.end_remote(stream)

    def on_end(self, stream: ClientStream) -> None:
        """Close a stream whose server side has ended."""
        if stream.partial_message is not None:
            self.on_bad_message(stream, RpcError(Status.INTERNAL, "a cut-off message"))
            return
        outcome = stream.outcome
        if outcome is None:
            outcome = RpcError(Status.INTERNAL, "the response has no trailers")
        if not stream.state & LOCAL_CLOSED:
            self.sender.reset_stream(stream, Code.CANCEL)
        stream.close(None if outcome.status == Status.OK else outcome)
        self.streams.pop(stream.id, None)
        self.on_stream_slot()

    def on_reset(self, stream: ClientStream, code: int) -> None:
        """Close a stream that the server has reset."""
        if code == Code.REFUSED_STREAM:
            error: RpcError = NotProcessedError(Status.UNAVAILABLE, "the server refused the stream")
        else:
            error = RpcError(status_of_reset(code), f"stream reset with code {code}")
        stream.close(error)
        self.on_stream_slot()

    def on_half_closed(self, stream: ClientStream) -> None:
        """Do nothing: the request was sent completely, and the response is still to come."""

    def on_settings(self) -> None:
        """Report that the server's limit of streams may have changed."""
        self.on_stream_slot()

    def on_goaway(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """Close the streams that the server will not process, and start no new streams."""
        self.leaving = True
        for stream in list(self.streams.values()):
            if stream.id > last_stream_id:
                self.sender.forget_stream(stream)
                text = debug.decode("ascii", "replace") or f"GOAWAY with code {code}"
                stream.close(NotProcessedError(Status.UNAVAILABLE, f"server is leaving: {text}"))
        self.on_stream_slot()

    def may_reopen_window(self) -> bool:
        """Return True: a client always continues to read."""
        return True

    def on_message(self, stream: ClientStream, message: bytes) -> None:
        """Pass a message to its stream's owner."""
        if not stream.opened:
            raise RpcError(Status.INTERNAL, "DATA before HEADERS")
        try:
            stream.on_message(message)
        except Exception:
            log.exception("on_message of a client stream failed; the stream is cancelled")
            raise RpcError(Status.INTERNAL, "the owner of the stream failed") from None

    def on_bad_message(self, stream: ClientStream, error: RpcError) -> None:
        """Reset and close a stream whose content is invalid or too large."""
        if stream.id in self.streams:
            self.sender.reset_stream(stream, Code.CANCEL)
        stream.close(error)
        self.on_stream_slot()

    def on_tiny_piece(self) -> None:
        """Do nothing: a client trusts the server that it has chosen."""

    def on_many_messages(self) -> None:
        """Do nothing: a client has no other connections to serve."""

    def allocator_of(self, stream: ClientStream) -> AllocateBuffer | None:  # noqa: ARG002 (interface)
        """Return None: messages to a client are received as bytes."""
        return None

    def defer_inflation(self, stream: ClientStream, inflation: Inflation) -> bool:  # noqa: ARG002
        """Return False: a client inflates its messages at once."""
        return False

    def _decode(self, block: bytes) -> list[Field]:
        fields = self._blocks.get(block)
        if fields is None:
            before = self._decoder.generation
            decoded = self._decoder.decode(block)
            if self._decoder.generation != before:
                # The dynamic table has changed. Clear the cache first, because a refused block has
                # changed the table as well.
                self._blocks.clear()
            if decoded.oversized:
                raise Http2StreamError(Code.INTERNAL_ERROR, "the response's metadata is too large")
            fields = decoded.fields
            if self._decoder.generation == before:
                self._blocks.remember(block, fields)
        return fields

    def _on_response_head(self, stream: ClientStream, fields: list[Field], ended: int) -> None:
        http_status, kind = 0, b""
        for name, value in fields:
            if name == b":status" and value.isdigit():
                http_status = int(value)
            elif name == b"content-type":
                kind = value
            elif name == b"grpc-encoding":
                stream.encoding = value.decode("latin-1")
        if http_status in _INFORMATIONAL and not ended:
            return
        if http_status != _HTTP_OK or not kind.startswith(b"application/grpc"):
            self._fail_response(stream, fields, http_status)
            return
        stream.opened = True
        if ended:
            stream.outcome = outcome_of(fields)
        elif stream.on_open is not None:
            stream.on_open()

    def _fail_response(self, stream: ClientStream, fields: list[Field], http_status: int) -> None:
        if any(name == b"grpc-status" for name, _ in fields):
            error = outcome_of(fields) or RpcError(Status.UNKNOWN, f"HTTP status {http_status}")
        else:
            error = RpcError(status_of_http(http_status), f"HTTP status {http_status}, not gRPC")
        self.sender.reset_stream(stream, Code.CANCEL)
        stream.close(error)
        self.on_stream_slot()


def outcome_of(fields: list[Field]) -> RpcError:
    """Return the gRPC status of trailers as an RpcError, even for OK, to keep the metadata."""
    status = Status.UNKNOWN
    message = _NO_STATUS
    trailers: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name == b"grpc-status":
            number = int(value) if value.isdigit() and len(value) <= 3 else -1
            status = Status(number) if number in Status._value2member_map_ else Status.UNKNOWN
            if message == _NO_STATUS:
                message = ""
        elif name == b"grpc-message":
            message = decode_message(value)
        elif name[:1] != b":" and name not in _RESERVED:
            trailers.extend(decode_pairs(name, value))
    return RpcError(status, message, trailers)
