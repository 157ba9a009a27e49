"""The client's half of gRPC on one HTTP/2 connection. No I/O, no clock; asyncio and blocking shells
share it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nereid.rpc.grpc.metadata import (
    decode_message,
    decode_pairs,
    encode_metadata,
    format_timeout,
    literal,
    literal_at,
)
from nereid.rpc.grpc.status import (
    NotProcessedError,
    RpcError,
    Status,
    status_of_http,
    status_of_reset,
)
from nereid.rpc.http2 import frames
from nereid.rpc.http2.connection import Connection
from nereid.rpc.http2.frames import Code, Http2ConnectionError, Http2StreamError
from nereid.rpc.http2.header_decoder import Field, HeaderDecoder
from nereid.rpc.http2.sender import Outbound, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.rpc.http2.control_frames import Limits

log = logging.getLogger("nereid.rpc")

_CACHED_BLOCKS = 64
# Until the server's settings say otherwise (RFC 9113 6.5.2 recommends no less than 100).
_STREAMS_BEFORE_SETTINGS = 100
_RESERVED = frozenset(
    (b"content-type", b"grpc-status", b"grpc-message", b"grpc-encoding", b"grpc-accept-encoding")
)
_INFORMATIONAL = range(100, 200)
_HTTP_OK = 200


def request_block(
    path: str,
    authority: str,
    metadata: Iterable[tuple[str, str | bytes]],
    *,
    secure: bool = False,
    timeout_s: float | None = None,
) -> bytes:
    """A request's header block, all literals: a function of its arguments on any connection."""
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


class ClientStream(Stream):
    """One call. May be used before it has a connection: what is sent then waits for it.

    `on_close` is called once, with None for OK. After `cancel` nothing is called any more.
    """

    __slots__ = (
        "_early",
        "_half_closed",
        "block",
        "done",
        "leave",
        "on_close",
        "on_message",
        "on_open",
        "on_writable",
        "opened",
        "outcome",
    )

    connection: ClientConnection

    def __init__(
        self,
        block: bytes,
        on_message: Callable[[bytes], None],
        on_close: Callable[[RpcError | None], None],
    ) -> None:
        super().__init__(_UNCONNECTED, 0)
        self.block = block
        self.on_message = on_message
        self.on_close = on_close
        self.on_open: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        # Set by a channel that holds the stream in its queue.
        self.leave: Callable[[ClientStream], None] | None = None
        self.opened = False
        self.done = False
        self.outcome: RpcError | None = None
        self._early: list[bytes] = []
        self._half_closed = False

    @property
    def buffered_bytes(self) -> int:
        return self.queued_bytes

    def begin(self, connection: ClientConnection, stream_id: int) -> None:
        """The connection took the stream: say what has been waiting."""
        self.connection = connection
        self.id = stream_id
        self.leave = None
        self.send_window = connection.peer_initial_window
        self.queued_bytes = 0
        early, self._early = self._early, []
        for message in early:
            connection.send_message(self, message)
        if self._half_closed:
            connection.end_request(self)

    def send(self, message: bytes) -> None:
        if self.done or self._half_closed:
            return
        if self.id:
            self.connection.send_message(self, message)
        else:
            self._early.append(message)
            self.queued_bytes += len(message) + 5

    def half_close(self) -> None:
        if not self.done and not self._half_closed:
            self._half_closed = True
            if self.id:
                self.connection.end_request(self)

    def cancel(self) -> None:
        if self.done:
            return
        self.done = True
        if self.id:
            self.connection.reset(self, Code.CANCEL)
            self.connection.freed()
        elif self.leave is not None:
            self.leave(self)
        self._drop()

    def pause(self) -> None:
        """Stop giving the server's window back."""
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            if self.id and not self.remote_closed:
                self.connection.give_back(self)

    def writable(self) -> None:
        if self.on_writable is not None and not self.done:
            self.on_writable()

    def close(self, error: RpcError | None) -> None:
        if not self.done:
            self.done = True
            on_close = self.on_close
            self._drop()
            on_close(error)

    def _drop(self) -> None:
        """Let go of the owner, that no cycle keeps the two."""
        self.on_open = self.on_writable = self.leave = None
        self.on_close = self.on_message = _ignore
        self._early = []


def _ignore(_what: object) -> None:
    pass


_UNCONNECTED: Outbound[ClientStream] = Outbound()


class ClientConnection(Connection[ClientStream]):
    """One connection to a server."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, b"")
        self.peer_max_streams = _STREAMS_BEFORE_SETTINGS
        self.leaving = False
        # Called when a stream ended and another may start, and when the server's settings arrived.
        self.freed: Callable[[], None] = lambda: None
        self._decoder = HeaderDecoder(limits.max_header_list_bytes)
        self._blocks: dict[bytes, list[Field]] = {}
        self._last_id = -1
        self.out.append(frames.PREFACE + self._opening())

    def _own_settings(self) -> dict[int, int]:
        return {frames.ENABLE_PUSH: 0}

    @property
    def has_room(self) -> bool:
        return len(self.streams) < self.peer_max_streams

    @property
    def usable(self) -> bool:
        return (
            not self.leaving and self.dead is None and self._last_id < frames.LARGEST_STREAM_ID - 2
        )

    def start(self, stream: ClientStream) -> None:
        """Open a stream; only while usable and with room."""
        stream_id = self._last_id = self._last_id + 2
        self.streams[stream_id] = stream
        self.write(self.header_frames(stream_id, stream.block, 0))
        stream.begin(self, stream_id)

    def end_request(self, stream: ClientStream) -> None:
        self.send_tail(stream, b"")

    def give_back(self, stream: ClientStream) -> None:
        self._give_back(stream)

    def lost_streams(self, because: str = "") -> None:
        """The transport is gone."""
        error_status = self.dead
        why = f"connection lost{because}" if error_status is None else error_status.message
        for stream in self.lost():
            stream.close(RpcError(Status.UNAVAILABLE, why))

    # --- the core's hooks

    def _on_settled(self) -> None:
        if self.peer_max_streams == _STREAMS_BEFORE_SETTINGS:
            # The settings did not speak of it: no limit.
            self.peer_max_streams = frames.LARGEST_STREAM_ID
        self.freed()

    def _is_idle(self, stream_id: int) -> bool:
        return not stream_id & 1 or stream_id > self._last_id

    def _tail_frame(self, stream: ClientStream, tail: bytes) -> bytes:
        return frames.frame(frames.DATA, frames.END_STREAM, stream.id, tail)

    def _local_closed(self, stream: ClientStream) -> None:
        if stream.remote_closed:
            self.streams.pop(stream.id, None)

    def _on_goaway(self, last_stream_id: int, code: int, debug: bytes) -> None:
        self.leaving = True
        for stream in list(self.streams.values()):
            if stream.id > last_stream_id:
                self._forget(stream)
                text = debug.decode("ascii", "replace") or f"GOAWAY with code {code}"
                stream.close(NotProcessedError(Status.UNAVAILABLE, f"server is leaving: {text}"))
        self.freed()

    def _fields(self, block: bytes) -> list[Field]:
        fields = self._blocks.get(block)
        if fields is None:
            before = self._decoder.generation
            decoded = self._decoder.decode(block)
            if decoded.oversized:
                raise Http2StreamError(Code.INTERNAL_ERROR, "the answer's metadata is too large")
            fields = decoded.fields
            if self._decoder.generation != before or len(self._blocks) >= _CACHED_BLOCKS:
                self._blocks.clear()
            else:
                self._blocks[block] = fields
        return fields

    def _on_headers(self, stream_id: int, block: bytes, ended: int) -> None:
        stream = self.streams.get(stream_id)
        fields = self._fields(block)
        if stream is None:
            if self._is_idle(stream_id):
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "HEADERS on an idle stream")
            return
        if stream.remote_closed:
            raise Http2StreamError(Code.STREAM_CLOSED, "HEADERS after the end of a stream")
        if not stream.opened:
            self._on_response(stream, fields, ended)
        elif ended:
            stream.outcome = outcome_of(fields)
            stream.assembly = None
        else:
            raise Http2StreamError(Code.PROTOCOL_ERROR, "trailers that do not end the stream")
        if ended:
            self._end(stream)

    def _on_response(self, stream: ClientStream, fields: list[Field], ended: int) -> None:
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
            self._refuse(stream, fields, http_status)
            return
        stream.opened = True
        if ended:
            stream.outcome = outcome_of(fields)
        elif stream.on_open is not None:
            stream.on_open()

    def _refuse(self, stream: ClientStream, fields: list[Field], http_status: int) -> None:
        """Not an answer of a gRPC server, or one in HTTP's own terms."""
        if any(name == b"grpc-status" for name, _ in fields):
            error = outcome_of(fields) or RpcError(Status.UNKNOWN, f"HTTP status {http_status}")
        else:
            error = RpcError(status_of_http(http_status), f"HTTP status {http_status}, not gRPC")
        self.reset(stream, Code.CANCEL)
        stream.close(error)
        self.freed()

    def _on_message(self, stream: ClientStream, message: bytes) -> None:
        if not stream.opened:
            raise RpcError(Status.INTERNAL, "DATA before HEADERS")
        try:
            stream.on_message(message)
        except Exception:
            log.exception("the owner of a stream failed on a message")
            raise RpcError(Status.INTERNAL, "the owner of the stream failed") from None

    def _on_end(self, stream: ClientStream) -> None:
        outcome = stream.outcome
        if outcome is None:
            # END_STREAM came on DATA: the trailers are missing.
            outcome = RpcError(Status.INTERNAL, "the answer has no trailers")
        if not stream.local_closed:
            self.reset(stream, Code.CANCEL)
        stream.close(None if outcome.status == Status.OK else outcome)
        self.streams.pop(stream.id, None)
        self.freed()

    def _on_reset(self, stream: ClientStream, code: int) -> None:
        if code == Code.REFUSED_STREAM:
            error: RpcError = NotProcessedError(Status.UNAVAILABLE, "the server refused the stream")
        else:
            error = RpcError(status_of_reset(code), f"stream reset with code {code}")
        stream.close(error)
        self.freed()

    def _on_bad_message(self, stream: ClientStream, error: RpcError) -> None:
        if stream.id in self.streams:
            self.reset(stream, Code.CANCEL)
        stream.close(error)
        self.freed()


def outcome_of(fields: list[Field]) -> RpcError:
    """The status that trailers carry; OK as well, as its message and metadata may matter."""
    status = Status.UNKNOWN
    message = "the answer has no grpc-status"
    trailers: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name == b"grpc-status":
            number = int(value) if value.isdigit() and len(value) <= 3 else -1
            status = Status(number) if number in Status._value2member_map_ else Status.UNKNOWN
            if message == "the answer has no grpc-status":
                message = ""
        elif name == b"grpc-message":
            message = decode_message(value)
        elif name[:1] != b":" and name not in _RESERVED:
            trailers.extend(decode_pairs(name, value))
    return RpcError(status, message, trailers)
