"""How many messages of streams one turn of the event loop handles, and who waits for the next one.

One read from a connection may hold thousands of small messages, each of which costs as much as any
request.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

_log = logging.getLogger(__name__)

_TURN_MESSAGES: Final = 128
# What a stream that has waited may handle before the next one.
STREAM_MESSAGES: Final = 16


class WaitingStream(Protocol):
    """A stream with messages that no turn has handled yet."""

    def continue_reading(self) -> None:
        """Handle some of them; waits again if some are left."""


class StreamTurns:
    """The messages of all streams of one event loop."""

    def __init__(self) -> None:
        self._handled = 0
        self._waiting: dict[WaitingStream, None] = {}

    @property
    def spent(self) -> bool:
        """Whether this turn handles no further message."""
        return self._handled >= _TURN_MESSAGES

    def spend(self) -> bool:
        """A message is handled; whether the turn is spent now."""
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
                # The streams that wait behind it must still be resumed.
                _log.exception("a gRPC stream failed when its next turn began")
