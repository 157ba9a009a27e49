"""Body of one HTTP request while it arrives: gathered in pieces, or written to a buffer."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from nereid_gateway.server.limits import RequestRejected

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_gateway.server.call import BodyBuffer, HttpCall
    from nereid_gateway.server.limits import HttpLimits

    # Returns a buffer for a call's body of a given size in bytes, or None to gather the body as
    # bytes.
    AllocateBody = Callable[[HttpCall, int], BodyBuffer | None]


class RequestBody:
    """Counts and gathers a body's content. Methods raise RequestRejected if a limit is exceeded."""

    __slots__ = (
        "_announced_bytes",
        "_call",
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
        self._call: HttpCall | None = None
        # A body that arrives in one piece is not copied.
        self._first = b""
        self._content: io.BytesIO | None = None
        self._chunks = 0
        self._size_bytes = 0
        # The size in the Content-Length header, or 0 for a chunked body.
        self._announced_bytes = 0
        # Bytes that came after the data with the end of the headers: content and chunk framing.
        self._wire_bytes = 0
        # Its size is that of the body. None: the body is gathered in pieces.
        self.buffer: BodyBuffer | None = None

    def clear(self) -> None:
        """Drop the content, so that another body may begin."""
        self._first = b""
        self._content = self.buffer = self._call = None
        self._size_bytes = self._chunks = self._wire_bytes = self._announced_bytes = 0

    def begin(self, call: HttpCall, allocate_body: AllocateBody | None) -> None:
        """Begin the body of a call whose headers are complete."""
        self._call = call
        size_bytes = int(call.headers.get(b"content-length", 0))
        self._limits.check_body(call, size_bytes)
        self._announced_bytes = size_bytes
        if size_bytes and allocate_body is not None:
            self.buffer = allocate_body(call, size_bytes)

    def count_wire_bytes(self, size_bytes: int) -> None:
        """Count received bytes before they are parsed. Some of them are framing, not content."""
        self._limits.check_framing(self._wire_bytes - self._size_bytes, self._chunks)
        self._wire_bytes += size_bytes

    def begin_chunk(self) -> None:
        """Count a chunk whose header was parsed."""
        self._chunks += 1
        most = self._limits.max_chunks
        # The last chunk is empty, and is not limited.
        if self._chunks > most + 1:
            raise RequestRejected(
                400,
                f"Chunked request body exceeds maximum of {most} non-empty chunks. Send fewer or"
                " larger HTTP chunks.",
            )

    def append(self, piece: bytes | memoryview) -> None:
        """Add a piece of the content."""
        assert self._call is not None, "the body has not begun"
        begin = self._size_bytes
        end = self._size_bytes = begin + len(piece)
        self._limits.check_body(self._call, end)
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
        # BytesIO returns the bytes object that it wrote to, without a copy.
        call.body = self._first if self._content is None else self._content.getvalue()
        self.clear()
