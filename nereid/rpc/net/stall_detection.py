"""Tells a peer that takes nothing of what waits for it, or sends nothing of what it has begun, from
one that is merely slow.

Pure: the time, and how much waits, are passed in at every look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping


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


class ProgressWatch:
    """Watches things that arrive in pieces."""

    __slots__ = ("_known", "_limit_s")

    def __init__(self, limit_s: float | None) -> None:
        """limit_s: how long nothing may come of one; None: for ever."""
        self._limit_s = limit_s
        self._known: dict[int, tuple[Hashable, float]] = {}

    def standing(self, come: Mapping[int, Hashable], now: float) -> list[int]:
        """Those of which nothing has come for too long. come: how far each has come, by its number;
        what is not in it is not waited for now.
        """
        known = {}
        standing = []
        for number, so_far in come.items():
            before, since = self._known.get(number, (None, now))
            if before != so_far:
                since = now
            elif self._limit_s is not None and now - since >= self._limit_s:
                standing.append(number)
            known[number] = (so_far, since)
        self._known = known
        return standing
