"""Detects peers that read nothing of what is queued for them, or send nothing of what they have
begun. A slow peer is not stalled.

Pure: the time and the progress are passed in at every check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping


class StallWatch:
    """Watches one queue of bytes towards a peer."""

    __slots__ = ("_limit_s", "_since", "_waiting_bytes")

    def __init__(self, limit_s: float | None) -> None:
        """limit_s: how long the peer may read nothing; None: for ever."""
        self._limit_s = limit_s
        self._waiting_bytes = 0
        self._since = 0.0

    def stalled(self, waiting_bytes: int, now: float) -> bool:
        """Whether the peer has read nothing for too long, though bytes were queued for it."""
        if self._limit_s is None:
            return False
        if not self._waiting_bytes or waiting_bytes < self._waiting_bytes:
            self._since = now
        self._waiting_bytes = waiting_bytes
        return waiting_bytes > 0 and now - self._since >= self._limit_s


class ProgressWatch:
    """Watches things that arrive in pieces."""

    __slots__ = ("_limit_s", "_seen")

    def __init__(self, limit_s: float | None) -> None:
        """limit_s: how long one may make no progress; None: for ever."""
        self._limit_s = limit_s
        self._seen: dict[int, tuple[Hashable, float]] = {}

    def stalled(self, progress: Mapping[int, Hashable], now: float) -> list[int]:
        """The numbers of those that made no progress for too long. progress: how far each has come,
        by its number; the time of what is not in it starts anew.
        """
        seen = {}
        stalled = []
        for number, current in progress.items():
            before, since = self._seen.get(number, (None, now))
            if before != current:
                since = now
            elif self._limit_s is not None and now - since >= self._limit_s:
                stalled.append(number)
            seen[number] = (current, since)
        self._seen = seen
        return stalled
