"""Interfaces that the owner of an HTTP/2 connection implements to get its events."""

# layout: not covered, a protocol
# layout: not compiled, off the hot path

from __future__ import annotations

from typing import Protocol, TypeVar

from nereid.rpc.http2.stream import Stream

S_contra = TypeVar("S_contra", bound=Stream, contravariant=True)


class ConnectionHandler(Protocol[S_contra]):
    """Protocol on top of a connection, server or client; it opens and names the streams."""

    def on_headers(self, stream_id: int, block: bytes, ended: int) -> None:
        """Handle a whole header block, still encoded; `ended` is set if END_STREAM came with it.

        Raises:
            Http2StreamError: the stream is reset, and reported to on_reset if it has a record.
        """

    def on_end(self, stream: S_contra) -> None:
        """Handle the regular end of the peer's side."""

    def on_reset(self, stream: S_contra, code: int) -> None:
        """Handle a reset by either side; the stream's record has left the table."""

    def on_half_closed(self, stream: S_contra) -> None:
        """Handle the end of our side, all sent, while the peer's side is still open."""

    def on_settings(self) -> None:
        """Handle the arrival of the peer's first settings."""

    def on_goaway(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """Handle a GOAWAY: the peer processes no streams above `last_stream_id`."""

    def may_reopen_window(self) -> bool:
        """Return whether the peer may send more on this connection as a whole."""


class ContentReader(Protocol[S_contra]):
    """Reader of the content of DATA frames, as it arrives and in pieces of any size."""

    def read(self, stream: S_contra, data: bytes, start: int, stop: int) -> None:
        """Read a piece of the stream's content, `data[start:stop]`."""
