"""Tells a peer that takes nothing of what waits for it from one that is merely slow.

Pure: the time, and how much waits, are passed in at every look.
"""

from __future__ import annotations


class StallWatch:
    """Watches one queue of bytes towards a peer."""

    __slots__ = ("_limit_s", "_since", "_waiting_bytes")

    def __init__(self, limit_s: float | None) -> None:
        """limit_s: how long nothing may be taken; None: for ever."""
        self._limit_s = limit_s
        self._waiting_bytes = 0
        self._since = 0.0

    def stalled(self, waiting_bytes: int, now: float) -> bool:
        """Whether the peer has taken nothing for too long, though there was something to take."""
        if self._limit_s is None:
            return False
        if not self._waiting_bytes or waiting_bytes < self._waiting_bytes:
            self._since = now
        self._waiting_bytes = waiting_bytes
        return waiting_bytes > 0 and now - self._since >= self._limit_s
