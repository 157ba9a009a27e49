"""Responses of a server over HTTP/1.1, read only to know where they end and what they say."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httptools

from nereid.bounded_cache import BoundedCache
from nereid_adopt.proxy.held_bytes import NO_SPACE
from nereid_adopt.proxy.recorder import MIN_BUFFER_BYTES
from nereid_perf.wire.response_head import ResponseParser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_adopt.proxy.held_bytes import Holder

TOO_LARGE: Final = "the response is too large"
FINAL: Final = 200
_HEAD_END: Final = b"\r\n\r\n"
_MAX_HEAD_BYTES: Final = 4096
_MAX_HEADS: Final = 512
_UNREADABLE: Final = (httptools.HttpParserError, httptools.HttpParserUpgrade)
# They have no body, whatever length they state.
_WITHOUT_BODY: Final = frozenset((204, 304))


class ResponseHead:
    """Facts of a response's head. is_plain: a body of a stated length follows."""

    def __init__(self, parser: Any) -> None:
        self.status: int = parser.status
        self.keeps_alive: bool = parser.keeps_alive
        self.content_length: int = parser.content_length
        self.json_bytes: int = parser.json_bytes
        self.encoding: str = parser.content_encoding
        self.is_plain = (
            self.status >= FINAL and self.status not in _WITHOUT_BODY and self.content_length >= 0
        )


class ResponseHeads:
    """Heads that servers have sent. Equal ones are parsed once."""

    def __init__(self) -> None:
        self._heads: BoundedCache[bytes, ResponseHead] = BoundedCache(_MAX_HEADS)

    def plain_head(self, text: bytes) -> ResponseHead | None:
        """Return the facts of a head, or `None` if its response needs a parser."""
        head = self._heads.get(text)
        if head is None:
            parser = ResponseParser()
            try:
                parser.feed(text)
            except _UNREADABLE:
                return None
            head = ResponseHead(parser)
            self._heads.remember(text, head)
        return head if head.is_plain else None


class ResponseReader:
    """Reader of one response. is_head: it has no body, because the request was HEAD.

    status: 0 until a final head has arrived. is_http: False if the bytes cannot be parsed. The body
    is kept up to a limit, and so far as its holder has space; why_not_kept: the reason if not.
    """

    def __init__(
        self,
        heads: ResponseHeads,
        *,
        is_head: bool = False,
        max_body_bytes: int = 1 << 31,
        held: Holder | None = None,
    ) -> None:
        self.status = 0
        self.keeps_alive = False
        self.json_bytes = 0
        self.encoding = ""
        self.body_bytes = 0
        self.complete = False
        self.is_http = True
        # True if the end of the connection ends the response.
        self.ends_with_connection = False
        self._heads = heads
        self._is_head = is_head
        self._max_body_bytes = max_body_bytes
        self._held = held
        self.why_not_kept = ""
        self._body: list[bytes | memoryview] = []
        # Bytes of the body that have not arrived, with a plain head.
        self._missing = -1
        self._parser: ResponseParser | None = None

    @property
    def body(self) -> Sequence[bytes | memoryview] | None:
        """The body in pieces, or `None` if it was not kept."""
        return None if self.why_not_kept else self._body

    def feed(self, data: bytes) -> None:
        """Read the next bytes."""
        if self._missing >= 0:
            self._add(data)
        elif self._parser is not None:
            self._parse(self._parser, data)
        else:
            end = data.find(_HEAD_END, 0, _MAX_HEAD_BYTES) + len(_HEAD_END)
            head = None
            if end >= len(_HEAD_END):
                head = self._heads.plain_head(data[:end])
            if head is None:
                self._parser = ResponseParser()
                self._parse(self._parser, data)
            else:
                self._begin(head, data, end)

    def _begin(self, head: ResponseHead, data: bytes, end: int) -> None:
        self.status = head.status
        self.keeps_alive = head.keeps_alive
        self.json_bytes = head.json_bytes
        self.encoding = head.encoding
        self._missing = 0 if self._is_head else head.content_length
        if len(data) - end < MIN_BUFFER_BYTES:
            self._add(data[end:])
        else:
            self._add(memoryview(data)[end:])

    def _add(self, piece: bytes | memoryview) -> None:
        size = len(piece)
        self._missing -= size
        if size:
            self._keep(piece)
        if self._missing <= 0:
            self.complete = True
            if self._missing < 0:
                # Nobody knows what the further bytes are.
                self.keeps_alive = False

    def _parse(self, parser: ResponseParser, data: bytes) -> None:
        if not self.is_http:
            return
        try:
            parser.feed(data)
        except _UNREADABLE:
            # Passed on until the connection ends: the client may understand it.
            self.is_http = False
            return
        for piece in parser.body:
            self._keep(piece)
        parser.body.clear()
        if parser.status >= FINAL:
            self.status = parser.status
            self.keeps_alive = parser.keeps_alive
            self.json_bytes = parser.json_bytes
            self.encoding = parser.content_encoding
            self.ends_with_connection = parser.content_length < 0 and not parser.keeps_alive
            self.complete = parser.complete or self._is_head

    def _keep(self, piece: bytes | memoryview) -> None:
        self.body_bytes += len(piece)
        if self.why_not_kept:
            return
        if self.body_bytes > self._max_body_bytes:
            self.why_not_kept = TOO_LARGE
        elif self._held is not None and not self._held.add(len(piece)):
            self.why_not_kept = NO_SPACE
        else:
            self._body.append(piece)
            return
        self._body.clear()
        if self._held is not None:
            self._held.release()
