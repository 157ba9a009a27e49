"""One HTTP request and its answer, as the front sees them; knows neither sockets nor routes."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from nereid.services.gateway.http.json.parser import error_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nereid.services.gateway.tensor_memory import MessageBuffer

JSON: Final = b"application/json"
TEXT: Final = b"text/plain"
BINARY: Final = b"application/octet-stream"

_PROCESSING: Final = b"HTTP/1.1 102 Processing\r\n\r\n"
# Pieces of an answer that waits behind others on its connection.
_MOST_WAITING_BYTES: Final = 65536

_LINES: Final = {
    int(status): b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}


class HttpCall:
    """A request that arrived whole. Answered once, by any of the methods; later answers are lost.

    An answer in pieces is one begin(), any number of send() and one finish(). on_cancel, when set,
    is called once if the connection goes before the answer was given; on_pace, when pieces come
    faster than the client takes them (True), and when it has caught up (False).
    """

    __slots__ = (
        "_finished",
        "body",
        "done",
        "filler",
        "headers",
        "http_1_0",
        "keep_alive",
        "method",
        "on_cancel",
        "on_pace",
        "paused",
        "received_ns",
        "response",
        "room",
        "started",
        "streams",
        "target",
        "waiting_bytes",
    )

    def __init__(self, finished: Callable[[], None]) -> None:
        self.method = b""
        self.target = b""
        # Lower-case names; of a repeated header the last one.
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        # Set: the body lies here, and not in body.
        self.room: MessageBuffer | None = None
        self.keep_alive = True
        self.http_1_0 = False
        self.done = False
        self.on_cancel: Callable[[], None] | None = None
        # What is to be written next; the connection takes it.
        self.response: list[bytes] = []
        # Whether the answer comes in pieces, and whether some of it was written.
        self.streams = False
        self.started = False
        # Of an answer in pieces: what waited for the client already when the last piece came.
        self.waiting_bytes = 0
        self.on_pace: Callable[[bool], None] | None = None
        self.paused = False
        # A piece that says nothing, to find out whether the client is still there.
        self.filler = b""
        # When it began to be read as a request for inference; set only where requests are traced.
        self.received_ns = 0
        self._finished = finished

    def respond(
        self,
        status: int,
        body: Sequence[bytes],
        content_type: bytes = JSON,
        extra: bytes = b"",
    ) -> None:
        """Answer with body, given in parts; extra is further header lines, each with its CRLF."""
        size = sum(map(len, body))
        head = b"%bContent-Type: %b\r\n%bContent-Length: %d\r\n" % (
            _LINES[status],
            content_type,
            extra,
            size,
        )
        self.respond_raw(head, body)

    def respond_raw(self, head: bytes, body: Sequence[bytes]) -> None:
        """Answer with a head that lacks only what the connection adds, and the blank line."""
        if self.done:
            return
        if self.streams:
            # Too late for another answer: the client sees this one end early.
            self.finish()
            return
        self.done = True
        self.on_cancel = None
        if not self.keep_alive:
            head += b"Connection: close\r\n"
        elif self.http_1_0:
            head += b"Connection: keep-alive\r\n"
        self.response = [head + b"\r\n", *body]
        self._finished()

    def fail(
        self, status: int, message: str, content_type: bytes = JSON, extra: bytes = b""
    ) -> None:
        """Answer with an error body."""
        body = error_body(message)
        if self.method == b"HEAD":
            # No content may follow, or the client would take it for the next answer's head.
            about = b"Content-Type: %b\r\n%bContent-Length: %d\r\n" % (
                content_type,
                extra,
                len(body),
            )
            self.respond_raw(_LINES[status] + about, ())
        else:
            self.respond(status, (body,), content_type, extra)

    def refuse_method(self, content_type: bytes, *allowed: bytes) -> None:
        """Answer a method that the target does not know; allowed are those that it knows."""
        line = b"Allow: %b\r\n" % b", ".join(allowed)
        self.fail(405, "Method Not Allowed", content_type, line)

    def begin(self, status: int, content_type: bytes, extra: bytes = b"") -> None:
        """Begin an answer in pieces. Where there are no chunks, the connection's end ends it."""
        if self.done:
            return
        if self.http_1_0:
            self.keep_alive = False
        framing = b"" if self.http_1_0 else b"Transfer-Encoding: chunked\r\n"
        closing = b"" if self.keep_alive else b"Connection: close\r\n"
        head = (_LINES[status], b"Content-Type: ", content_type, b"\r\n", extra, framing, closing)
        self.streams = True
        self._add((*head, b"\r\n"))

    def send(self, piece: bytes) -> None:
        """One more piece of an answer that was begun."""
        if self.done or not piece:
            return
        self.waiting_bytes = sum(map(len, self.response))
        if self.http_1_0:
            self._add((piece,))
        else:
            self._add((b"%x\r\n" % len(piece), piece, b"\r\n"))
        if self.waiting_bytes > _MOST_WAITING_BYTES:
            self.set_pace(paused=True)

    def set_pace(self, *, paused: bool) -> None:
        """The client cannot keep up with the pieces, or it can again."""
        if self.paused is not paused and self.on_pace is not None and not self.done:
            self.paused = paused
            self.on_pace(paused)

    def probe(self, write: Callable[[bytes], None]) -> None:
        """Write something that a client passes over, if there is anything."""
        if self.started:
            self.send(self.filler)
        elif not self.http_1_0:
            write(_PROCESSING)

    def finish(self) -> None:
        """The end of an answer that was begun."""
        if self.done:
            return
        self.done = True
        self.on_cancel = self.on_pace = None
        self._add(() if self.http_1_0 else (b"0\r\n\r\n",))

    def _add(self, parts: Iterable[bytes]) -> None:
        self.response.append(b"".join(parts))
        self._finished()

    def cancel(self) -> None:
        """The connection is gone."""
        if self.done:
            return
        self.done = True
        on_cancel, self.on_cancel, self.on_pace = self.on_cancel, None, None
        if on_cancel is not None:
            on_cancel()
