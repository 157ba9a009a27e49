"""One stream of HTTP/2 of the proxy, to a client or to a server."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.rpc.grpc.metadata import encode_status, literal, literal_at
from nereid.rpc.grpc.status import Status
from nereid.rpc.http2 import frames
from nereid.rpc.http2.frames import Code
from nereid.rpc.http2.stream import LOCAL_CLOSED, REMOTE_CLOSED, Stream

if TYPE_CHECKING:
    from nereid.rpc.http2.connection import Http2Connection
    from nereid.rpc.http2.header_decoder import Field
    from nereid.rpc.http2.writer import Http2Writer

# Fields of requests that gRPC's libraries set: a copy has those of its own connection.
_OWN_FIELDS: Final = frozenset(
    (b"te", b"content-type", b"content-length", b"user-agent", b"grpc-timeout", b"grpc-encoding",
     b"grpc-accept-encoding", b"host")
)  # fmt: skip
_HEAD: Final = b"\x88" + literal_at(31, b"application/grpc")
UNREACHABLE: Final = "the server cannot be reached"
LOST: Final = "the connection to the server was lost"
_HIGH_WATER_BYTES: Final = 1 << 20
_PAUSED: Final = 1


class Block:
    """A header block: its fields encoded as literals, and metadata among them."""

    __slots__ = ("_values", "encoded", "metadata", "path")

    def __init__(self, fields: list[Field]) -> None:
        self.metadata = tuple(
            field for field in fields if field[0][:1] != b":" and field[0] not in _OWN_FIELDS
        )
        self._values = dict(reversed(fields))
        self.encoded = b"".join(literal(name, value) for name, value in fields)
        self.path = self._values.get(b":path", b"").decode("latin-1")

    def get(self, name: bytes) -> bytes | None:
        """Return the first value of a field."""
        return self._values.get(name)


class StreamOwner:
    """Receiver of one stream's events. on_end's block is the trailers; `None` without any."""

    def on_head(self, block: Block) -> None:
        """Handle headers that do not end the stream."""

    def on_content(self, content: bytes) -> None:
        """Handle a part of the content."""

    def on_end(self, trailers: Block | None) -> None:
        """Handle the regular end of the peer's side."""

    def on_reset(self, code: int, *, processed: bool) -> None:
        """Handle a stream that the peer has reset, or whose connection is lost."""

    def on_writable(self) -> None:
        """Handle a queue that has become short."""


class StreamHolder:
    """Connection of streams."""

    http2: Http2Connection[ProxyStream]
    writer: Http2Writer

    def on_stream_closed(self) -> None:
        """Handle a stream that this side has reset."""


class ProxyStream(Stream):
    """Stream of either kind of connection."""

    __slots__ = ("connection", "head_sent", "opened", "owner")

    def __init__(self, stream_id: int, connection: StreamHolder) -> None:
        super().__init__(stream_id, connection.http2.sender.peer_initial_window)
        self.connection = connection
        self.owner: StreamOwner | None = None
        self.opened = self.head_sent = False

    def notify_writable(self) -> None:
        """Report that the queue has become short."""
        if self.owner is not None:
            self.owner.on_writable()

    @property
    def is_full(self) -> bool:
        """True if the sender should pause."""
        return self.queued_bytes > _HIGH_WATER_BYTES

    @property
    def is_open(self) -> bool:
        """True if this side can still send."""
        return not self.state & LOCAL_CLOSED

    def send_head(self, block: bytes) -> None:
        """Send headers."""
        if self.is_open:
            self.head_sent = True
            self.connection.http2.sender.write_headers(self.id, block)

    def send_content(self, content: bytes) -> None:
        """Send content, or queue it until the windows allow it."""
        if not (self.is_open and content):
            return
        sender = self.connection.http2.sender
        if sender.take_window(self, len(content)):
            sender.write(frames.frame(frames.DATA, 0, self.id, content))
        else:
            sender.enqueue(self, (content,))

    def send_last(self, content: bytes) -> None:
        """Send the last content and the end of this side, in one frame if the windows allow it."""
        if not self.is_open:
            return
        sender = self.connection.http2.sender
        if sender.take_window(self, len(content)):
            sender.write(frames.frame(frames.DATA, frames.END_STREAM, self.id, content))
            sender.close_local(self)
        else:
            self.send_content(content)
            sender.end_stream(self)

    def end(self, trailers: bytes = b"") -> None:
        """End this side, with trailers or headers if there are any."""
        if self.is_open:
            self.connection.http2.sender.end_stream(self, trailers)
            if self.state & REMOTE_CLOSED:
                # Its owner refers to it, and content in a cycle waits for the garbage collector.
                self.owner = None

    def fail(self, message: str) -> None:
        """End a client's call as unavailable."""
        head = b"" if self.head_sent else _HEAD
        self.end(head + encode_status(Status.UNAVAILABLE, message))

    def reset(self, code: int = Code.CANCEL) -> None:
        """Reset the stream. Its owner is not called any more."""
        self.owner = None
        if self.id in self.connection.http2.streams.open:
            self.connection.http2.sender.reset_stream(self, code)
            self.connection.on_stream_closed()

    def set_paused(self, paused: bool) -> None:
        """Keep the peer's window closed, or reopen it."""
        if paused:
            self.paused |= _PAUSED
        elif self.paused:
            self.paused = 0
            if not self.state & REMOTE_CLOSED:
                self.connection.http2.receiver.reopen_stream_window(self)
