"""Reads a large body directly into its buffer.

It replaces the connection as the transport's protocol meanwhile. The connection is an
asyncio.Protocol, which gets bytes objects and would have to copy them.
"""

# layout: not compiled, extends asyncio.BufferedProtocol

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# Event loops read this many bytes at a time, so a receiver saves nothing for fewer bytes.
DIRECT_BYTES: Final = 1 << 18
# Limit per read, so that a fast client does not hold up the event loop.
_READ_BYTES: Final = 1 << 20
_NOTHING: Final = memoryview(b"")


class BodyReceiver(asyncio.BufferedProtocol):
    """Receives the rest of one body into its buffer."""

    def __init__(
        self, connection: asyncio.Protocol, on_received: Callable[[int], None], view: memoryview
    ) -> None:
        """on_received: gets the number of received bytes. view: the part of the buffer to fill."""
        self._connection = connection
        self._on_received = on_received
        self._view = view
        self._received_bytes = 0

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the next part of the buffer to read into."""
        received = self._received_bytes
        # Bytes that arrive after a rejection overwrite the view, and nobody reads them.
        return self._view[received : received + _READ_BYTES] or self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Count bytes that were read into the buffer."""
        self._received_bytes += nbytes
        self._on_received(nbytes)

    def close(self) -> None:
        """Release the buffer, because a transport keeps its last BufferedProtocol."""
        self._view = _NOTHING

    def eof_received(self) -> bool | None:
        """Pass the event on to the connection."""
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the event on to the connection."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass the event on to the connection."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Pass the event on to the connection."""
        self._connection.resume_writing()
