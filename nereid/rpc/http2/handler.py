"""What an HTTP/2 connection reports, and to whom: the interfaces that its owner implements."""

from __future__ import annotations

from typing import Protocol, TypeVar

from nereid.rpc.http2.stream import Stream

S_contra = TypeVar("S_contra", bound=Stream, contravariant=True)


class ConnectionHandler(Protocol[S_contra]):
    """The protocol on top, server or client, which opens and names the streams."""

    def on_headers(self, stream_id: int, block: bytes, ended: int) -> None:
        """A whole header block, still encoded; `ended` is set when END_STREAM came with it.

        Raises:
            Http2StreamError: the stream is reset, and reported to on_reset if it has a record.
        """

    def on_end(self, stream: S_contra) -> None:
        """The peer ended its side in good order."""

    def on_reset(self, stream: S_contra, code: int) -> None:
        """The stream was reset by either side; its record has left the table."""

    def on_half_closed(self, stream: S_contra) -> None:
        """Our side has ended and everything was sent, while the peer's side is still open."""

    def on_settings(self) -> None:
        """The peer's first settings came."""

    def on_goaway(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """The peer processes no streams above this one."""

    def may_reopen_window(self) -> bool:
        """Whether the peer may send more on this connection as a whole."""


class ContentReader(Protocol[S_contra]):
    """What becomes of the content of DATA frames, as it arrives and in pieces of any size."""

    def read(self, stream: S_contra, data: bytes, start: int, stop: int) -> None:
        """data[start:stop] is a piece of the stream."""
