"""One HTTP request and its response, as endpoints see them."""

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
# The head lacks the headers that depend on the connection, and the empty line at its end.
_HEAD: Final = b"%bContent-Type: %b\r\n%bContent-Length: %d\r\n"
# Parts of up to this size are joined: a vectored write costs more than the copy.
JOIN_BYTES: Final = 65536
# If more bytes of a streamed response queue up, its producer is asked to pause.
_PAUSE_AT_BYTES: Final = 65536

_STATUS_LINES: Final = {
    int(status): b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}


class BodyBuffer(Protocol):
    """Memory that a large request body is written to directly, as it arrives."""

    @property
    def view(self) -> memoryview:
        """Writable memory, as long as the body."""

    def __len__(self) -> int: ...


class HttpCall:
    """HTTP request that has arrived completely, and its response.

    Only the first response counts. A streamed response is one begin_stream(), any number of
    send_chunk() and one end_stream(). `on_cancel` is called if the client disconnects before the
    response is complete. `on_done` is called at the end in either case. `on_flow_control` is called
    with True when chunks queue up, and with False when the client has caught up.
    """

    __slots__ = (
        "_on_progress",
        "account",
        "body",
        "body_buffer",
        "check_model",
        "done",
        "encode_error",
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
        self,
        on_progress: Callable[[], None],
        peer: str = "",
        account: Account = NO_ACCOUNT,
        known_headers: KnownHeaders | None = None,
        body: bytes = b"",
    ) -> None:
        """Make a call, which is empty unless it has known headers.

        on_progress: called whenever `unwritten` has parts to write.
        """
        self.peer = peer
        self.account = account
        # Owner of the pending request: the connection's account, or an authenticated principal.
        self.sender: object = account
        self.held_bytes = 0
        # Set if the request repeats a known head, so that the parser was not needed.
        self.known_headers = known_headers
        # Key: a lower-case name. If a header is repeated, the last value counts. Calls with the
        # same known head share the dict.
        self.headers: dict[bytes, bytes]
        if known_headers is None:
            self.method = self.target = b""
            self.headers = {}
        else:
            self.method, self.target = known_headers.method, known_headers.target
            self.headers = known_headers.headers
        self.body = body
        self.body_buffer: BodyBuffer | None = None
        self.keep_alive = True
        self.http_1_0 = False
        self.done = False
        self.on_cancel: Callable[[], None] | None = None
        self.on_done: Callable[[], None] | None = None
        # Parts to write next. The connection removes the parts that it writes.
        self.unwritten: list[bytes] = []
        # Raises CallRefused if the client may not use a model. Set for endpoints whose body names
        # the model, if clients need credentials.
        self.check_model: Callable[[str], None] | None = None
        # Returns the JSON body of an error from its status and text. None: as on Triton.
        self.encode_error: Callable[[int, str], bytes] | None = None
        self.streamed = False
        self.head_written = False
        # Bytes of a streamed response that were unwritten when the last chunk was added.
        self.queued_bytes = 0
        self.on_flow_control: Callable[[bool], None] | None = None
        self.flow_paused = False
        # Chunk without content, which is sent to find out whether the client is still connected.
        self.keepalive_chunk = b""
        # Time at which an endpoint began to read the request, if requests are traced or timed.
        self.received_ns = 0
        # Returns the header lines for the end of the response. If it is streamed, they are
        # trailers.
        self.last_lines: Callable[[], bytes] | None = None
        self._on_progress = on_progress

    def hold(self, size_bytes: int) -> None:
        """Charge this request's bytes to its client's account; raise OverBudgetError."""
        if not self.done:
            self.account.charge(size_bytes, self.held_bytes)
            self.held_bytes += size_bytes

    def free_body(self) -> None:
        """Drop the body, and stop charging for it. The request's next owner charges for it."""
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
        """Respond with a body in parts. extra: further header lines, each with its CRLF."""
        size = sum(map(len, body))
        self._respond(_HEAD % (_STATUS_LINES[status], content_type, extra, size), body)

    def respond_not_modified(self, extra: bytes) -> None:
        """Respond 304: the client's copy is current. extra: header lines, each with its CRLF."""
        self._respond(_STATUS_LINES[304] + extra, ())

    def _respond(self, head: bytes, body: Sequence[bytes]) -> None:
        if self.done:
            return
        if self.streamed:
            # A part of the response is sent, so no other response is possible. The client sees that
            # the response ends early.
            self.end_stream()
            return
        if self.last_lines is not None:
            head += self.last_lines()
        if not self.keep_alive:
            head += b"Connection: close\r\n"
        elif self.http_1_0:
            head += b"Connection: keep-alive\r\n"
        self.complete([head + b"\r\n", *body])

    def complete(self, parts: list[bytes]) -> None:
        """Respond with the parts of a response: a head without a missing line, and a body."""
        if self.done:
            return
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
        """Respond with an error, whose message is in a JSON body."""
        if self.encode_error is None:
            body = error_body(message)
        else:
            body, content_type = self.encode_error(status, message), JSON
        head = _HEAD % (_STATUS_LINES[status], content_type, extra, len(body))
        # A client would take a body after HEAD for the beginning of the next response.
        self._respond(head, () if self.method == b"HEAD" else (body,))

    def refuse_method(self, content_type: bytes, *allowed: bytes) -> None:
        """Respond that the target accepts only the allowed methods."""
        line = b"Allow: %b\r\n" % b", ".join(allowed)
        self.fail(405, "Method Not Allowed", content_type, line)

    def begin_stream(self, status: int, content_type: bytes, extra: bytes = b"") -> None:
        """Begin a streamed response. Over HTTP/1.0, it ends with the connection."""
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
        """Ask the producer of chunks to pause or to continue, unless it already does."""
        if self.flow_paused is not paused and self.on_flow_control is not None and not self.done:
            self.flow_paused = paused
            self.on_flow_control(paused)

    def write_probe(self, write: Callable[[bytes], None]) -> None:
        """Write bytes that the client ignores, to find out whether the client is still there.

        Before the response, the bytes are an interim 102. Within a stream, they are a chunk without
        content. An HTTP/1.0 client gets nothing before its response.
        """
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
        """End the call, because its client has disconnected."""
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
    """Return the head of a 200 response with a body of size bytes, for a connection kept open."""
    return _HEAD % (_STATUS_LINES[200], content_type, extra, size) + b"\r\n"


def error_body(message: str) -> bytes:
    """Return the JSON body of an error. Question marks replace what UTF-8 cannot encode."""
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})
