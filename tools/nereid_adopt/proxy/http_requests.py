"""Requests of one HTTP/1.1 connection, parsed by httptools and written anew for a server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import httptools

from nereid_adopt.proxy.held_bytes import NO_SPACE, HeldBytes, Holder

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_HEAD_BYTES: Final = 1 << 18
# Pieces of a streamed body that wait for the server.
TOO_LARGE: Final = "the request is too large"
_CONTINUE: Final = b"100-continue"


class HeadTooLargeError(Exception):
    """Raised for a request whose head is too large."""


class HttpRequest:
    """One request.

    arriving: pieces of a body that is not kept, then `None`. why_not_kept: the reason.
    """

    def __init__(self, held: Holder) -> None:
        self.held = held
        self.why_not_kept = ""
        self.method = ""
        self.target = b""
        self.version = "1.1"
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = True
        self.chunked = False
        self.expects_continue = False
        self.content_length = 0
        self.json_bytes = 0
        self.encoding = ""
        self.pieces: list[bytes] = []
        self.body_bytes = 0
        self.arriving: asyncio.Queue[bytes | None] | None = None

    @property
    def body(self) -> bytes:
        """The whole body of a request that was kept."""
        if len(self.pieces) != 1:
            self.pieces = [b"".join(self.pieces)]
        return self.pieces[0]

    @property
    def json_text(self) -> bytes:
        """The body's JSON, with the begin of the tensors that may follow it."""
        if not self.json_bytes or self.encoding:
            return self.body
        text = b""
        for piece in self.pieces:
            text += piece
            if len(text) >= self.json_bytes:
                break
        return text

    def head(self) -> bytes:
        """Return the request's head; the proxy itself has replied to `Expect`."""
        lines = [f"{self.method} ".encode("latin-1") + self.target + b" HTTP/1.1"]
        if self.version != "1.1":
            lines = [f"{self.method} ".encode("latin-1") + self.target + b" HTTP/1.0"]
        lines += (b"%s: %s" % field for field in self.headers if field[0].lower() != b"expect")
        return b"\r\n".join((*lines, b"\r\n"))

    def encode_piece(self, piece: bytes) -> bytes:
        """Return a part of the body as it is sent."""
        return b"%x\r\n%s\r\n" % (len(piece), piece) if self.chunked else piece

    def end(self) -> bytes:
        """Return what follows the body."""
        return b"0\r\n\r\n" if self.chunked else b""


class RequestReader:
    """Parser of requests; the parser calls methods such as on_url()."""

    def __init__(
        self,
        max_body_bytes: int,
        held_bytes: HeldBytes,
        on_request: Callable[[HttpRequest], None],
    ) -> None:
        """on_request: called with each complete request, or with the head of a large one."""
        self._max_body_bytes = max_body_bytes
        self._held_bytes = held_bytes
        self._on_request = on_request
        self._parser = httptools.HttpRequestParser(self)
        self.request: HttpRequest | None = None
        self._head_bytes = 0

    def feed(self, data: bytes) -> None:
        """Parse bytes. Raises httptools.HttpParserError or HeadTooLargeError."""
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        """Begin a request; called by httptools."""
        self.request = HttpRequest(Holder(self._held_bytes))
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Keep a part of the target; called by httptools."""
        assert self.request is not None
        self._count(len(url))
        self.request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; called by httptools, for trailers of chunks as well."""
        assert self.request is not None
        self._count(len(name) + len(value))
        if self.request.method:
            return
        self.request.headers.append((name, value))
        key = name.lower()
        if key == b"content-length":
            self.request.content_length = int(value)
        elif key == b"transfer-encoding":
            self.request.chunked = True
        elif key == b"expect":
            self.request.expects_continue = value.lower() == _CONTINUE
        elif key == b"content-encoding":
            self.request.encoding = value.decode("latin-1").lower()
        elif key == b"inference-header-content-length" and value.isdigit():
            self.request.json_bytes = int(value)

    def on_headers_complete(self) -> None:
        """Decide whether the body is kept; called by httptools."""
        request = self.request
        assert request is not None
        request.method = self._parser.get_method().decode("latin-1")
        request.version = self._parser.get_http_version()
        request.keep_alive = self._parser.should_keep_alive()
        if request.content_length > self._max_body_bytes:
            self._begin_stream(request, TOO_LARGE)

    def on_body(self, piece: bytes) -> None:
        """Keep or pass on a part of the body; called by httptools."""
        request = self.request
        assert request is not None
        request.body_bytes += len(piece)
        if request.arriving is not None:
            request.arriving.put_nowait(piece)
            return
        request.pieces.append(piece)
        if request.body_bytes > self._max_body_bytes:
            self._begin_stream(request, TOO_LARGE)
        elif not request.held.add(len(piece)):
            self._begin_stream(request, NO_SPACE)

    def on_message_complete(self) -> None:
        """Hand on a complete request; called by httptools."""
        request, self.request = self.request, None
        assert request is not None
        if request.arriving is not None:
            request.arriving.put_nowait(None)
        else:
            self._on_request(request)

    def _begin_stream(self, request: HttpRequest, reason: str) -> None:
        request.why_not_kept = reason
        request.arriving = asyncio.Queue()
        self._on_request(request)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _MAX_HEAD_BYTES:
            raise HeadTooLargeError
