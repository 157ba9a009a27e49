"""Reads heads of HTTP responses. In a run nearly all heads are equal, so they are parsed once."""

from __future__ import annotations

from typing import Final

import httptools

from nereid_perf.server_stats.server_timing import HEADER

_OK: Final = 200
_SERVER_TIMING: Final = HEADER.encode()
_MAX_HEADS: Final = 64
_EVENT_STREAM: Final = b"text/event-stream"


class ResponseParser:
    """A parser of one response of any kind, based on httptools; json_bytes is before tensors."""

    def __init__(self) -> None:
        self.complete = False
        self.status = 0
        self.keeps_alive = False
        self.content_length = -1
        self.json_bytes = 0
        self.content_encoding = ""
        self.server_timing = ""
        self.is_stream = False
        self.body: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes; raise httptools.HttpParserError if they are no HTTP response."""
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the headers that matter; called by httptools."""
        key = name.lower()
        if key == b"content-length":
            self.content_length = int(value)
        elif key == b"inference-header-content-length":
            self.json_bytes = int(value)
        elif key == b"content-encoding":
            self.content_encoding = value.decode("latin-1").lower()
        elif key == b"content-type":
            self.is_stream = value.lower().startswith(_EVENT_STREAM)
        elif key == _SERVER_TIMING:
            # Several headers with this name count as one, with commas.
            texts = filter(None, (self.server_timing, value.decode("latin-1")))
            self.server_timing = ", ".join(texts)

    def on_headers_complete(self) -> None:
        """Note whether the connection stays open; called by httptools."""
        self.status = self._parser.get_status_code()
        # Ask the parser now: later it refers to the next message.
        self.keeps_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body; called by httptools."""
        self.body.append(body)

    def on_message_complete(self) -> None:
        """Note the end of the response; called by httptools."""
        # After 1xx, such as 100 Continue, the real response follows.
        if self.status >= _OK:
            self.complete = True


class PlainHeads:
    """Recognises heads of successful responses that have a length and keep the connection open."""

    def __init__(self) -> None:
        self._lengths: dict[bytes, int] = {}

    def content_length(self, head: bytes) -> int:
        """Return the body's length, or -1 for another kind of head; `head` has the empty line."""
        length = self._lengths.get(head)
        if length is None:
            length = _content_length(head)
            if len(self._lengths) >= _MAX_HEADS:
                # If heads contain a date, a new head comes every second.
                self._lengths.clear()
            self._lengths[head] = length
        return length


def _content_length(head: bytes) -> int:
    parser = ResponseParser()
    try:
        parser.feed(head)
    except httptools.HttpParserError:
        return -1
    return parser.content_length if parser.status == _OK and parser.keeps_alive else -1
