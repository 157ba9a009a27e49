"""One HTTP request and its response, as endpoints see them; knows neither sockets nor routes."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from nereid.rpc.net.limits.budget import NO_ACCOUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.rpc.net.limits.budget import Account
    from nereid_gateway.server.known_headers import KnownHeaders

JSON: Final = b"application/json"
TEXT: Final = b"text/plain"
BINARY: Final = b"application/octet-stream"

_PROCESSING: Final = b"HTTP/1.1 102 Processing\r\n\r\n"
# The head lacks the headers that depend on the connection, and the blank line.
_HEAD: Final = b"%bContent-Type: %b\r\n%bContent-Length: %d\r\n"
# Responses of up to this many bytes are joined: writing vectors costs more than the copy.
JOIN_BYTES: Final = 65536
# Bytes of a streamed response that may queue up before its producer is asked to pause.
_PAUSE_AT_BYTES: Final = 65536

_STATUS_LINES: Final = {
    int(status): b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}


class BodyBuffer(Protocol):
    """Memory that a large request body is written to as it arrives, instead of into bytes."""

    @property
    def view(self) -> memoryview:
        """Memory, as long as the body."""

    def __len__(self) -> int: ...


class HttpCall:
    """Request that arrived completely, and its response.

    A call is responded to once, by any of the methods; later responses are dropped. A streamed
    response is one begin_stream(), any number of send_chunk() and one end_stream().

    `on_cancel` is called once if the client disconnects before the response is complete; `on_done`
    is called once when the response is complete or the client has disconnected before.
    `on_flow_control` is called with True when chunks queue up faster than the client reads them,
    and with False when it has caught up.
    """

    __slots__ = (
        "_on_progress",
        "account",
        "body",
        "body_buffer",
        "done",
        "flow_paused",
        "head_written",
        "headers",
        "held_bytes",
        "http_1_0",
        "keep_alive",
        "keepalive_chunk",
        "known_headers",
        "last_lines",
        "method",
        "on_cancel",
        "on_done",
        "on_flow_control",
        "peer",
        "queued_bytes",
        "received_ns",
        "sender",
        "streamed",
        "target",
        "unwritten",
    )

    def __init__(
        self, on_progress: Callable[[], None], peer: str = "", account: Account = NO_ACCOUNT
    ) -> None:
        """Make an empty call, which the reader fills in.

        on_progress is called whenever `unwritten` has something to write. peer is the client's
        address; account is where the request's bytes are charged.
        """
        self.peer = peer
        self.account = account
        # Owner of the pending request: that account, or an authenticated principal.
        self.sender: object = account
        # Bytes that are charged until the body is freed.
        self.held_bytes = 0
        self.method = b""
        self.target = b""
        # Set if the head was known, so that the parser was not needed.
        self.known_headers: KnownHeaders | None = None
        # Values by lower-case name; of a repeated header the last one. Calls with the same head
        # share the dict.
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        # If set, it holds the body, and `body` is empty.
        self.body_buffer: BodyBuffer | None = None
        self.keep_alive = True
        self.http_1_0 = False
        self.done = False
        self.on_cancel: Callable[[], None] | None = None
        self.on_done: Callable[[], None] | None = None
        # Parts of the response to write next; the connection removes them.
        self.unwritten: list[bytes] = []
        self.streamed = False
        self.head_written = False
        # Bytes of a streamed response that were still unwritten when the last chunk came.
        self.queued_bytes = 0
        self.on_flow_control: Callable[[bool], None] | None = None
        self.flow_paused = False
        # A chunk without meaning, sent to find out whether the client is still connected.
        self.keepalive_chunk = b""
        # Time at which an endpoint began to read the request; set only where requests are traced or
        # timed.
        self.received_ns = 0
        # Makes further header lines once the response is complete; for a streamed one, its
        # trailers.
        self.last_lines: Callable[[], bytes] | None = None
        self._on_progress = on_progress

    def hold(self, size_bytes: int) -> None:
        """Charge bytes of the request that are kept.

        Raises:
            OverBudgetError: the client has too many bytes here.
        """
        if not self.done:
            self.account.charge(size_bytes, self.held_bytes)
            self.held_bytes += size_bytes

    def free_body(self) -> None:
        """Drop the body of a request that was handed on, and no longer count its bytes.

        The next owner of the request counts them.
        """
        self.body = b""
        self.body_buffer = None
        if self.held_bytes:
            self._release()

    def _release(self) -> None:
        held_bytes, self.held_bytes = self.held_bytes, 0
        self.account.release(held_bytes)

    def respond(
        self,
        status: int,
        body: Sequence[bytes],
        content_type: bytes = JSON,
        extra: bytes = b"",
    ) -> None:
        """Respond with a body, given in parts.

        extra has further header lines, each with its CRLF.
        """
        size = sum(map(len, body))
        self._respond(_HEAD % (_STATUS_LINES[status], content_type, extra, size), body)

    def respond_again(self, parts: list[bytes]) -> None:
        """Respond with complete parts, while keep_alive is set.

        The parts begin with the text of kept_alive_head() for a body of this size.
        """
        if not self.done:
            self._complete(parts)

    def respond_not_modified(self, extra: bytes) -> None:
        """Respond that the client's copy is current; extra has header lines, each with its CRLF."""
        self._respond(_STATUS_LINES[304] + extra, ())

    def _respond(self, head: bytes, body: Sequence[bytes]) -> None:
        if self.done:
            return
        if self.streamed:
            # It is too late for another response: the client sees this one end early.
            self.end_stream()
            return
        if self.last_lines is not None:
            head += self.last_lines()
        if not self.keep_alive:
            head += b"Connection: close\r\n"
        elif self.http_1_0:
            head += b"Connection: keep-alive\r\n"
        self._complete([head + b"\r\n", *body])

    def _complete(self, parts: list[bytes]) -> None:
        self.done = True
        self.on_cancel = None
        if self.held_bytes:
            self._release()
        self.unwritten = parts
        if self.on_done is not None:
            self.on_done()
        self._on_progress()

    def fail(
        self, status: int, message: str, content_type: bytes = JSON, extra: bytes = b""
    ) -> None:
        """Respond with an error body."""
        body = error_body(message)
        head = _HEAD % (_STATUS_LINES[status], content_type, extra, len(body))
        # No content may follow after HEAD: the client would take it for the next response's head.
        self._respond(head, () if self.method == b"HEAD" else (body,))

    def refuse_method(self, content_type: bytes, *allowed: bytes) -> None:
        """Respond that the target accepts only the allowed methods."""
        line = b"Allow: %b\r\n" % b", ".join(allowed)
        self.fail(405, "Method Not Allowed", content_type, line)

    def begin_stream(self, status: int, content_type: bytes, extra: bytes = b"") -> None:
        """Begin a streamed response.

        HTTP/1.0 has no chunks: the end of the connection ends the response.
        """
        if self.done:
            return
        if self.http_1_0:
            self.keep_alive = False
        framing = b"" if self.http_1_0 else b"Transfer-Encoding: chunked\r\n"
        closing = b"" if self.keep_alive else b"Connection: close\r\n"
        self.streamed = True
        head = b"%bContent-Type: %b\r\n%b%b%b\r\n"
        self._enqueue(head % (_STATUS_LINES[status], content_type, extra, framing, closing))

    def send_chunk(self, data: bytes) -> None:
        """Send the next part of a streamed response."""
        if self.done or not data:
            return
        self.queued_bytes = sum(map(len, self.unwritten))
        self._enqueue(data if self.http_1_0 else b"%x\r\n%b\r\n" % (len(data), data))
        if self.queued_bytes > _PAUSE_AT_BYTES:
            self.control_flow(paused=True)

    def control_flow(self, *, paused: bool) -> None:
        """Ask the producer of chunks to pause or to continue, if that changes anything."""
        if self.flow_paused is not paused and self.on_flow_control is not None and not self.done:
            self.flow_paused = paused
            self.on_flow_control(paused)

    def write_probe(self, write: Callable[[bytes], None]) -> None:
        """Write something that the client ignores, if there is such a thing."""
        if self.head_written:
            self.send_chunk(self.keepalive_chunk)
        elif not self.http_1_0:
            write(_PROCESSING)

    def end_stream(self) -> None:
        """Complete a streamed response."""
        if self.done:
            return
        self.done = True
        self.on_cancel = self.on_flow_control = None
        if self.held_bytes:
            self._release()
        if self.on_done is not None:
            self.on_done()
        trailers = b"" if self.last_lines is None else self.last_lines()
        self._enqueue(b"" if self.http_1_0 else b"0\r\n%b\r\n" % trailers)

    def _enqueue(self, part: bytes) -> None:
        self.unwritten.append(part)
        self._on_progress()

    def cancel(self) -> None:
        """End a call whose client has disconnected."""
        if self.done:
            return
        self.done = True
        on_cancel, self.on_cancel, self.on_flow_control = self.on_cancel, None, None
        self.free_body()
        if self.on_done is not None:
            self.on_done()
        if on_cancel is not None:
            on_cancel()


def kept_alive_head(content_type: bytes, extra: bytes, size: int) -> bytes:
    """Return the head of a response 200 on a connection that is kept alive; size is the body's."""
    return _HEAD % (_STATUS_LINES[200], content_type, extra, size) + b"\r\n"


def error_body(message: str) -> bytes:
    """Return the body of a failed request; what UTF-8 cannot encode becomes a question mark."""
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})
