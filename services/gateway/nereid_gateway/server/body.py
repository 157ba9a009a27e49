"""Body of one HTTP request while it arrives: it is gathered in pieces, or written to a buffer.

A body that is written to a buffer bypasses the parser: its bytes are copied as they arrive.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from nereid_gateway.server.limits import RequestRejected

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_gateway.server.call import BodyBuffer, HttpCall
    from nereid_gateway.server.limits import HttpLimits

    # A function that returns a buffer for the body of a call, given its size in bytes. If it
    # returns None, the body is gathered as bytes objects.
    AllocateBody = Callable[[HttpCall, int], BodyBuffer | None]


class RequestBody:
    """Count and gather the content of a body; raise RequestRejected when a limit is exceeded."""

    __slots__ = (
        "_announced_bytes",
        "_chunks",
        "_content",
        "_first",
        "_limits",
        "_size_bytes",
        "_wire_bytes",
        "buffer",
    )

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        # First piece of the body. A body that arrives in one piece is not copied.
        self._first = b""
        self._content: io.BytesIO | None = None
        self._chunks = 0
        self._size_bytes = 0
        # Size from the Content-Length header; 0 for a chunked body.
        self._announced_bytes = 0
        # Bytes received after the data that completed the headers. They are content and its chunk
        # framing.
        self._wire_bytes = 0
        # Buffer as long as the body. If it is None, the body is gathered in pieces.
        self.buffer: BodyBuffer | None = None

    def clear(self) -> None:
        """Drop the content, so that another body may begin."""
        self._first = b""
        self._content = self.buffer = None
        self._size_bytes = self._chunks = self._wire_bytes = self._announced_bytes = 0

    def begin(self, call: HttpCall, allocate_body: AllocateBody | None) -> None:
        """Begin the body of a call whose headers are complete.

        Raises:
            RequestRejected: the announced body is too large.
        """
        size_bytes = int(call.headers.get(b"content-length", 0))
        self._limits.check_body(size_bytes)
        self._announced_bytes = size_bytes
        if size_bytes and allocate_body is not None:
            self.buffer = allocate_body(call, size_bytes)

    def count_wire_bytes(self, size_bytes: int) -> None:
        """Count received bytes before they are parsed. Some of them are framing, not content.

        Raises:
            RequestRejected: the bytes before contained too much framing.
        """
        self._limits.check_framing(self._wire_bytes - self._size_bytes, self._chunks)
        self._wire_bytes += size_bytes

    def begin_chunk(self) -> None:
        """Count a chunk whose header was parsed.

        Raises:
            RequestRejected: the body has too many chunks.
        """
        self._chunks += 1
        if self._chunks > self._limits.max_chunks:
            raise RequestRejected(
                400, f"request body has more than {self._limits.max_chunks} chunks"
            )

    def append(self, piece: bytes | memoryview) -> None:
        """Add a piece of the content.

        Raises:
            RequestRejected: the body has become too large.
        """
        begin = self._size_bytes
        end = self._size_bytes = begin + len(piece)
        self._limits.check_body(end)
        if self.buffer is not None:
            self.buffer.view[begin:end] = piece
        elif not begin:
            self._first = bytes(piece)
        else:
            if self._content is None:
                self._content = io.BytesIO()
                self._content.write(self._first)
                self._first = b""
            self._content.write(piece)

    def count_received(self, size_bytes: int) -> None:
        """Count content that is already in the buffer."""
        self._size_bytes += size_bytes

    @property
    def missing_view(self) -> memoryview:
        """Part of the buffer that is not filled yet."""
        assert self.buffer is not None, "there is no buffer"
        return self.buffer.view[self._size_bytes :]

    def fill_buffer(self, data: bytes) -> bytes:
        """Copy the missing part of the body into the buffer, and return what follows it in data."""
        assert self.buffer is not None, "only the parser knows where such a body ends"
        missing = len(self.buffer) - self._size_bytes
        self.append(data if len(data) <= missing else memoryview(data)[:missing])
        return data[missing:]

    @property
    def received_bytes(self) -> int:
        """Bytes received for the body, with its framing.

        Of the bytes that came together with the end of the headers, only content is counted.
        """
        return max(self._wire_bytes, self._size_bytes)

    @property
    def missing_bytes(self) -> int:
        """Content bytes that are still missing; 0 if no size was announced."""
        return max(0, self._announced_bytes - self._size_bytes)

    @property
    def size_bytes(self) -> int:
        """Size of the content received until now, in bytes."""
        return self._size_bytes

    @property
    def buffer_full(self) -> bool:
        """True if the body has a buffer and all of it is in the buffer."""
        return self.buffer is not None and len(self.buffer) == self._size_bytes

    def move_to(self, call: HttpCall) -> None:
        """Hand the complete body over to its call."""
        call.body_buffer = self.buffer
        # This makes no copy: BytesIO returns the bytes object that it wrote to.
        call.body = self._first if self._content is None else self._content.getvalue()
        self.clear()
