"""Deadlines of many calls behind one timer.

Pure: `now` is passed in. Calls share buckets of a hundredth of a second: adding or discarding a
deadline costs one dictionary operation, and one timer serves all calls. A deadline never fires
early, and at most one bucket after its time.
"""

# layout: compiled

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")

_PER_SECOND = 100
_SLACK = 64


class Deadlines(Generic[T]):
    """Items with a deadline each; an item has at most one."""

    def __init__(self) -> None:
        self._buckets: dict[int, set[T]] = {}
        self._order: list[int] = []

    def add_deadline(self, item: T, deadline: float) -> bool:
        """Add a deadline; return True if it is now the earliest, so the timer must be set again."""
        key = int(deadline * _PER_SECOND) + 1
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.add(item)
            return False
        self._buckets[key] = {item}
        heapq.heappush(self._order, key)
        return self._order[0] == key

    def discard_deadline(self, item: T, deadline: float) -> None:
        """Remove an item's deadline, if it has not fired yet."""
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
        """Return the time at which the timer must fire next, or None without deadlines."""
        return self._order[0] / _PER_SECOND if self._order else None

    def expire(self, now: float) -> list[T]:
        """Remove and return the items that are due."""
        due: list[T] = []
        limit = now * _PER_SECOND
        while self._order and self._order[0] <= limit:
            key = heapq.heappop(self._order)
            # A bucket that was emptied and refilled has its key in the heap twice.
            due.extend(self._buckets.pop(key, ()))
        return due
