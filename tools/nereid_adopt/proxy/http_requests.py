"""Requests of one HTTP/1.1 connection, parsed by httptools and written anew for a server.

A request whose head repeats the last one byte by byte needs no parser, and is passed on as it is.
"""

# layout: compiled

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import httptools

from nereid_adopt.calls.kinds import CallKind, HttpCall, http_call
from nereid_adopt.proxy.held_bytes import NO_SPACE, HeldBytes, Holder
from nereid_adopt.proxy.recorder import MIN_BUFFER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.bounded_cache import BoundedCache

_MAX_HEAD_BYTES: Final = 1 << 18
_MAX_KNOWN_BYTES: Final = 4096
TOO_LARGE: Final = "the request is too large"
_CONTINUE: Final = b"100-continue"
_UPGRADE: Final = frozenset((b"upgrade", b"http2-settings"))
_NO_CALL: Final = HttpCall(CallKind.OTHER)


class HeadTooLargeError(Exception):
    """Raised for a request whose head is too large."""


class RequestHead:
    """Head of one request, or of several equal ones. encoded: the head as a server gets it."""

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        self.path = ""
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.keep_alive = True
        self.chunked = False
        self.content_length = 0
        self.json_bytes = 0
        self.encoding = ""
        self.encoded = b""
        self.call = _NO_CALL

    def complete(
        self, method: str, version: str, headers: list[tuple[bytes, bytes]], *, keep_alive: bool
    ) -> None:
        """Add what is known when all headers have arrived."""
        self.method = method
        self.path = self.target.decode("latin-1")
        self.headers = tuple(headers)
        self.keep_alive = keep_alive
        self.call = http_call(method, self.target)
        last = b"HTTP/1.1" if version == "1.1" else b"HTTP/1.0"
        lines = [b" ".join((method.encode("latin-1"), self.target, last))]
        for name, value in headers:
            # The proxy itself replies to it.
            if name.lower() != b"expect":
                lines.append(b"%s: %s" % (name, value))
        self.encoded = b"\r\n".join((*lines, b"\r\n"))

    def without_upgrade(self) -> bytes:
        """Return the head without its offer to upgrade the protocol."""
        first_line, _, _ = self.encoded.partition(b"\r\n")
        lines = [first_line]
        for name, value in self.headers:
            key, kept = name.lower(), value
            if key == b"connection":
                options = (option.strip() for option in value.split(b","))
                kept = b", ".join(each for each in options if each.lower() not in _UPGRADE)
            if key not in _UPGRADE and (kept or not value):
                lines.append(b"%s: %s" % (name, kept))
        return b"\r\n".join((*lines, b"\r\n"))


class HttpRequest:
    """One request.

    arriving: pieces of a body that is not kept, then `None`. why_not_kept: the reason.
    """

    def __init__(self, head: RequestHead, held: Holder) -> None:
        self.head = head
        self.held = held
        self.why_not_kept = ""
        self.expects_continue = False
        self.pieces: list[bytes | memoryview] = []
        self.body_bytes = 0
        self.arriving: asyncio.Queue[bytes | None] | None = None
        # The whole request, if a server may get it as it has arrived.
        self._as_sent: bytes | None = None

    def set_whole(self, data: bytes) -> None:
        """Set a request that has arrived as a whole, and whose head is known."""
        self._as_sent = data
        start = len(self.head.encoded)
        self.body_bytes = len(data) - start
        if self.body_bytes >= MIN_BUFFER_BYTES:
            self.pieces.append(memoryview(data)[start:])
        elif self.body_bytes:
            self.pieces.append(data[start:])

    @property
    def body(self) -> bytes:
        """The whole body of a request that was kept."""
        return b"".join(self.pieces)

    @property
    def json_text(self) -> bytes:
        """The body's JSON, with the begin of the tensors that may follow it."""
        size = self.head.json_bytes
        if not size or self.head.encoding:
            return self.body
        text = b""
        for piece in self.pieces:
            text += piece[:size]
            if len(text) >= size:
                break
        return text

    def parts(self) -> list[bytes | memoryview]:
        """Return the request, so far as it has arrived, as a server gets it."""
        if self._as_sent is not None:
            return [self._as_sent]
        parts: list[bytes | memoryview] = [self.head.encoded]
        if not self.head.chunked:
            parts += self.pieces
        else:
            parts += map(self.encode_piece, self.pieces)
            if self.arriving is None:
                parts.append(self.end())
        return parts

    def encode_piece(self, piece: bytes | memoryview) -> bytes:
        """Return a part of the body as it is sent."""
        if self.head.chunked:
            return b"%x\r\n%s\r\n" % (len(piece), piece)
        return bytes(piece)

    def end(self) -> bytes:
        """Return what follows the body."""
        return b"0\r\n\r\n" if self.head.chunked else b""


class RequestReader:
    """Parser of requests; httptools calls methods such as on_url()."""

    def __init__(
        self,
        max_body_bytes: int,
        held_bytes: HeldBytes,
        heads: BoundedCache[bytes, RequestHead],
        on_request: Callable[[HttpRequest], None],
    ) -> None:
        """Create a reader.

        heads: known heads of all connections. on_request: called with each complete request, or
        with the head of a large one.
        """
        self._max_body_bytes = max_body_bytes
        self._held_bytes = held_bytes
        self._heads = heads
        self._on_request = on_request
        self._parser = httptools.HttpRequestParser(self)
        # The request that arrives.
        self.request: HttpRequest | None = None
        self.has_head = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._known: RequestHead | None = None
        # Received bytes that begin with the request, if its head may become the known one.
        self._first: bytes | None = None
        # Bytes of the request whose head is not complete, in case it turns out to be malformed.
        self._unparsed: list[bytes] = []
        self._has_completed = self._offers_upgrade = False

    def feed(self, data: bytes) -> None:
        """Parse bytes. Raises httptools.HttpParserError or HeadTooLargeError."""
        if self.request is None:
            data = self._read_known(data)
            if not data:
                return
            self._first = data
        self._has_completed = False
        self._unparsed.append(data)
        size_bytes = len(data)
        while data:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                # The proxy supports no other protocol: parse the request again without the offer.
                data = self._without_upgrade() + data[upgrade.args[0] :]
        if self.request is None or self.has_head:
            self._unparsed.clear()
            self._head_bytes = 0
        else:
            # httptools keeps a header until its end, so the callbacks cannot count.
            self._head_bytes += size_bytes
            if self._head_bytes > _MAX_HEAD_BYTES:
                raise HeadTooLargeError

    @property
    def malformed(self) -> bytes:
        """The bytes of the request that could not be parsed; empty if others came with it."""
        return b"" if self._has_completed else b"".join(self._unparsed)

    def _read_known(self, data: bytes) -> bytes:
        """Read requests whose head is known; return the rest."""
        head = self._known
        if head is None:
            return data
        at, size = 0, len(head.encoded) + head.content_length
        while len(data) - at >= size and data.startswith(head.encoded, at):
            held = Holder(self._held_bytes)
            if not held.add(head.content_length):
                # The parser passes on a request that is not kept.
                break
            request = HttpRequest(head, held)
            request.set_whole(data if len(data) == size else data[at : at + size])
            at += size
            self._on_request(request)
        return data[at:] if at else data

    def _without_upgrade(self) -> bytes:
        """Return the head of a request that offers an upgrade, without the offer."""
        assert self.request is not None
        head = self.request.head
        if head.method == "CONNECT":
            raise httptools.HttpParserError
        self._parser = httptools.HttpRequestParser(self)
        return head.without_upgrade()

    def on_message_begin(self) -> None:
        """Begin a request; called by httptools."""
        self.request = HttpRequest(RequestHead(), Holder(self._held_bytes))
        self.has_head = False
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """Keep a part of the target; called by httptools."""
        assert self.request is not None
        self.request.head.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; called by httptools, for trailers of chunks as well."""
        request = self.request
        assert request is not None
        if self.has_head:
            return
        self._headers.append((name, value))
        head = request.head
        key = name.lower()
        if key == b"content-length":
            head.content_length = int(value)
        elif key == b"transfer-encoding":
            head.chunked = True
        elif key == b"expect":
            request.expects_continue = value.lower() == _CONTINUE
        elif key == b"content-encoding":
            head.encoding = value.decode("latin-1").lower()
        elif key == b"inference-header-content-length" and value.isdigit():
            head.json_bytes = int(value)

    def on_headers_complete(self) -> None:
        """Decide whether the body is kept; called by httptools."""
        request, parser = self.request, self._parser
        assert request is not None
        self.has_head = True
        request.head.complete(
            parser.get_method().decode("latin-1"),
            parser.get_http_version(),
            self._headers,
            keep_alive=parser.should_keep_alive(),
        )
        if parser.should_upgrade():
            self._offers_upgrade = True
            return
        if request.head.content_length > self._max_body_bytes:
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
        if self._offers_upgrade:
            # The parser stops after the head of a request that offers an upgrade.
            self._offers_upgrade = False
            return
        request, self.request = self.request, None
        assert request is not None
        self._has_completed = True
        first, self._first = self._first, None
        if request.arriving is not None:
            request.arriving.put_nowait(None)
            return
        head = request.head
        if (
            first is not None
            # Then it is also passed on as it is.
            and first.startswith(head.encoded)
            and head.keep_alive
            and not head.chunked
            and len(head.encoded) <= _MAX_KNOWN_BYTES
        ):
            # Equal heads are one object, which pickle writes once for all copies of a batch.
            self._known = self._heads.get(head.encoded) or self._heads.remember(head.encoded, head)
        self._on_request(request)

    def _begin_stream(self, request: HttpRequest, reason: str) -> None:
        request.why_not_kept = reason
        request.arriving = asyncio.Queue()
        self._on_request(request)
