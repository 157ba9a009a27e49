"""Deadlines of many calls behind one timer.

Pure: `now` is passed in. Calls share buckets of a hundredth of a second: adding and discarding cost
a dictionary operation each, and one timer serves them all. A deadline passes never early, and at
most one bucket after its time.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")

_PER_SECOND = 100
_SLACK = 64


class Deadlines(Generic[T]):
    """Which items are due. An item has at most one deadline."""

    def __init__(self) -> None:
        self._buckets: dict[int, set[T]] = {}
        self._order: list[int] = []

    def add_deadline(self, item: T, deadline: float) -> bool:
        """True when this is now the earliest: the timer has to be set again."""
        key = int(deadline * _PER_SECOND) + 1
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.add(item)
            return False
        self._buckets[key] = {item}
        heapq.heappush(self._order, key)
        return self._order[0] == key

    def discard_deadline(self, item: T, deadline: float) -> None:
        key = int(deadline * _PER_SECOND) + 1
        bucket = self._buckets.get(key)
        if bucket is None:
            return
        bucket.discard(item)
        if not bucket:
            del self._buckets[key]
            # The heap keeps the keys of emptied buckets until they are due, or too many.
            if len(self._order) > 2 * len(self._buckets) + _SLACK:
                self._order = sorted(self._buckets)

    def next_due(self) -> float | None:
        """When the timer must fire next."""
        return self._order[0] / _PER_SECOND if self._order else None

    def expire(self, now: float) -> list[T]:
        """Remove and return what is due."""
        due: list[T] = []
        limit = now * _PER_SECOND
        while self._order and self._order[0] <= limit:
            key = heapq.heappop(self._order)
            # An emptied and refilled bucket leaves its key twice.
            due.extend(self._buckets.pop(key, ()))
        return due
