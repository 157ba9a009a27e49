"""Limit on the messages of streams that one turn of the event loop handles.

One read from a connection may hold thousands of small messages, each of which costs as much as any
request. Streams beyond the limit wait for the next turn.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

_log = logging.getLogger(__name__)

_TURN_MESSAGES: Final = 128
# Messages that a stream which has waited may handle before the next stream.
STREAM_MESSAGES: Final = 16


class WaitingStream(Protocol):
    """Stream with messages that no turn has handled yet."""

    def continue_reading(self) -> None:
        """Handle some of the messages, and wait again if some are left."""


class StreamTurns:
    """Count the messages of all streams of one event loop."""

    def __init__(self) -> None:
        self._handled = 0
        self._waiting: dict[WaitingStream, None] = {}

    @property
    def spent(self) -> bool:
        """True if this turn handles no further message."""
        return self._handled >= _TURN_MESSAGES

    def spend(self) -> bool:
        """Count a message that is handled; return whether the turn is spent now."""
        if not self._handled:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._handled += 1
        return self._handled >= _TURN_MESSAGES

    def wait(self, stream: WaitingStream) -> None:
        """Resume a stream in a later turn, behind those that wait already."""
        self._waiting[stream] = None

    def _begin_turn(self) -> None:
        self._handled = 0
        for stream in list(self._waiting):
            if self.spent:
                break
            del self._waiting[stream]
            try:
                stream.continue_reading()
            except Exception:
                # Streams that wait behind this one must still be resumed.
                _log.exception("a gRPC stream failed when its next turn began")
