"""Limits how many stream messages one turn of the event loop handles.

One read may yield thousands of small messages, and each costs as much as a request.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

_log = logging.getLogger(__name__)

_TURN_MESSAGES: Final = 128
# A waiting stream handles at most this many messages before the next stream's turn.
STREAM_MESSAGES: Final = 16


class WaitingStream(Protocol):
    """Stream that has messages which it has not handled."""

    def continue_reading(self) -> None:
        """Handle some of the messages. If messages are left, wait again."""


class StreamTurns:
    """Counts the messages of all streams of one event loop."""

    def __init__(self) -> None:
        self._handled = 0
        self._waiting: dict[WaitingStream, None] = {}

    @property
    def spent(self) -> bool:
        """True if this turn must not handle a further message."""
        return self._handled >= _TURN_MESSAGES

    def spend(self) -> bool:
        """Count a message that is handled. Return whether the turn is spent now."""
        if not self._handled:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._handled += 1
        return self._handled >= _TURN_MESSAGES

    def wait(self, stream: WaitingStream) -> None:
        """Resume a stream in a later turn, after the streams that already wait."""
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
                # The streams that wait behind this one must still be resumed.
                _log.exception("a gRPC stream failed when its next turn began")
