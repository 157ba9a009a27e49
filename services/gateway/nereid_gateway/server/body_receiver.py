"""Receives a large body straight into its buffer, where a connection would be handed bytes objects
that it has to copy.

It is the transport's protocol from the time that such a body begins to arrive until it is complete.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# A body that lacks less is as well received as bytes: event loops read up to this much at a time.
DIRECT_BYTES: Final = 1 << 18
# What is read at a time, so that a fast client does not hold the event loop up.
_READ_BYTES: Final = 1 << 20
_NOTHING: Final = memoryview(b"")


class BodyReceiver(asyncio.BufferedProtocol):
    """Of one body."""

    def __init__(
        self, connection: asyncio.Protocol, on_received: Callable[[int], None], view: memoryview
    ) -> None:
        """connection: is represented. on_received: so many bytes were added to the body's buffer.
        view: what the body lacks.
        """
        self._connection = connection
        self._on_received = on_received
        self._view = view
        self._received_bytes = 0

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        received = self._received_bytes
        # Of a request that was dropped any number of bytes may follow; nobody reads them.
        return self._view[received : received + _READ_BYTES] or self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._received_bytes += nbytes
        self._on_received(nbytes)

    def close(self) -> None:
        """Let go of the buffer: a transport keeps the methods of its last BufferedProtocol."""
        self._view = _NOTHING

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
