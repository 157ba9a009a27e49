"""Interfaces through which the owner of an HTTP/2 connection receives events and content."""

# layout: not covered, a protocol
# layout: not compiled, off the hot path

from __future__ import annotations

from typing import Protocol, TypeVar

from nereid.rpc.http2.stream import Stream

S_contra = TypeVar("S_contra", bound=Stream, contravariant=True)


class ConnectionHandler(Protocol[S_contra]):
    """Receiver of a connection's events, on a server or client. It creates the stream records."""

    def on_headers(self, stream_id: int, block: bytes, ended: int) -> None:
        """Handle a complete, encoded header block; `ended` is nonzero if the peer's side ends.

        The connection resets the stream after an Http2StreamError, and calls on_reset if the stream
        has a record.
        """

    def on_end(self, stream: S_contra) -> None:
        """Handle the regular end of the peer's side of a stream."""

    def on_reset(self, stream: S_contra, code: int) -> None:
        """Handle a stream that either side has reset, after its record left the table."""

    def on_half_closed(self, stream: S_contra) -> None:
        """Handle a stream on which we have sent everything while the peer's side is still open."""

    def on_settings(self) -> None:
        """Handle the arrival of the peer's first settings."""

    def on_goaway(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """Handle a GOAWAY: the peer does not process streams with ids above `last_stream_id`."""

    def may_reopen_window(self) -> bool:
        """Return whether the peer may send more content on this connection as a whole."""


class ContentReader(Protocol[S_contra]):
    """Reader of the content of DATA frames, in pieces of any size, as they arrive."""

    def read(self, stream: S_contra, data: bytes, start: int, stop: int) -> None:
        """Read a piece of the stream's content, `data[start:stop]`."""
