"""Deadlines of many calls that share one timer.

Deadlines within 10 ms share a bucket, so adding one costs one dictionary operation. A deadline
never fires early, and fires at most 10 ms late.
"""

# layout: compiled

from __future__ import annotations

import heapq
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_PER_SECOND: Final = 100
_SLACK: Final = 64


class Deadlines(Generic[T]):
    """Deadlines of items. An item has at most one deadline."""

    def __init__(self) -> None:
        self._buckets: dict[int, set[T]] = {}
        self._order: list[int] = []

    def add_deadline(self, item: T, deadline: float) -> bool:
        """Add a deadline; return True if it is the earliest, so the timer must be set again."""
        key = int(deadline * _PER_SECOND) + 1
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.add(item)
            return False
        self._buckets[key] = {item}
        heapq.heappush(self._order, key)
        return self._order[0] == key

    def discard_deadline(self, item: T, deadline: float) -> None:
        """Remove the deadline of an item, unless it has fired."""
        key = int(deadline * _PER_SECOND) + 1
        bucket = self._buckets.get(key)
        if bucket is None:
            return
        bucket.discard(item)
        if not bucket:
            del self._buckets[key]
            # The heap keeps the keys of empty buckets until they are due or too many.
            if len(self._order) > 2 * len(self._buckets) + _SLACK:
                self._order = sorted(self._buckets)

    def next_due(self) -> float | None:
        """Return the time at which the timer must fire next; None if there are no deadlines."""
        return self._order[0] / _PER_SECOND if self._order else None

    def expire(self, now: float) -> list[T]:
        """Remove and return the items whose deadlines have passed."""
        due: list[T] = []
        limit = now * _PER_SECOND
        while self._order and self._order[0] <= limit:
            key = heapq.heappop(self._order)
            # If a bucket was emptied and filled again, its key is in the heap twice.
            due.extend(self._buckets.pop(key, ()))
        return due
