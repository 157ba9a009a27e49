"""A bound on what one confined worker uses up of what others use as well."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class RateBudget:
    """An amount that may be used: a burst, then a rate."""

    def __init__(
        self, burst: float, per_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst = burst
        self._per_s = per_s
        self._now = now
        self._left = burst
        self._at = now()
        self._dropped = 0

    def spend(self, amount: float) -> bool:
        """Return whether this amount may be used; count it as one dropped item otherwise."""
        if amount > self._refill():
            self._dropped += 1
            return False
        self._left -= amount
        return True

    def spend_part(self, amount: int) -> int:
        """Return how much of this amount may be used."""
        part = min(amount, int(self._refill()))
        self._left -= part
        return part

    def take_dropped(self) -> int:
        """Return how many items were dropped since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _refill(self) -> float:
        now = self._now()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        return self._left
