"""The slowest things of the last minute, in bounded memory. Pure: `now` in."""

# layout: not compiled, generic

from __future__ import annotations

from heapq import heappush, heapreplace
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class Slowest(Generic[T]):
    """At most `most` of each part of the window; what is older than the window is forgotten."""

    def __init__(self, most: int = 20, window_s: float = 60.0, parts: int = 6) -> None:
        self._most = most
        self._part_s = window_s / parts
        self._parts = parts
        self._numbers = count()
        # The start of each part, and a heap of durations in it.
        self._heaps: list[tuple[float, list[tuple[float, int, T]]]] = []

    def accepts(self, duration: float, now_s: float) -> bool:
        """Whether one of this duration would be among them; makes way for it."""
        if not self._heaps or now_s - self._heaps[-1][0] >= self._part_s:
            self._forget(now_s)
            self._heaps.append((now_s, []))
        heap = self._heaps[-1][1]
        return len(heap) < self._most or duration > heap[0][0]

    def add(self, duration: float, item: T) -> None:
        """Add one that accepts() has just said yes to."""
        heap = self._heaps[-1][1]
        entry = duration, next(self._numbers), item
        if len(heap) < self._most:
            heappush(heap, entry)
        else:
            heapreplace(heap, entry)

    def slowest(self, now_s: float) -> list[T]:
        """Those of the window, the slowest first."""
        self._forget(now_s)
        entries = sorted((each for _, heap in self._heaps for each in heap), reverse=True)
        return [item for _, _, item in entries[: self._most]]

    def clear(self) -> None:
        """Forget all."""
        self._heaps.clear()

    def _forget(self, now_s: float) -> None:
        oldest_s = now_s - self._part_s * self._parts
        self._heaps = [each for each in self._heaps if each[0] > oldest_s]
