"""The slowest items of the last minute, in bounded memory."""

from __future__ import annotations

from heapq import heappush, heapreplace
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class Slowest(Generic[T]):
    """Keeps the slowest items of a time window: at most `most` for each of the window's parts."""

    def __init__(self, most: int = 20, window_s: float = 60.0, parts: int = 6) -> None:
        self._most = most
        self._part_s = window_s / parts
        self._parts = parts
        self._numbers = count()
        # Start time of each part, and a heap of its items by duration.
        self._heaps: list[tuple[float, list[tuple[float, int, T]]]] = []

    def accepts(self, duration: float, now_s: float) -> bool:
        """Return whether an item of this duration would be kept. Begin a new part if it is time."""
        if not self._heaps or now_s - self._heaps[-1][0] >= self._part_s:
            self._forget(now_s)
            self._heaps.append((now_s, []))
        heap = self._heaps[-1][1]
        return len(heap) < self._most or duration > heap[0][0]

    def add(self, duration: float, item: T) -> None:
        """Add an item for which accepts() has just returned True."""
        heap = self._heaps[-1][1]
        entry = duration, next(self._numbers), item
        if len(heap) < self._most:
            heappush(heap, entry)
        else:
            heapreplace(heap, entry)

    def slowest(self, now_s: float) -> list[T]:
        """Return at most `most` items of the window, the slowest one first."""
        self._forget(now_s)
        entries = sorted((entry for _, heap in self._heaps for entry in heap), reverse=True)
        return [item for _, _, item in entries[: self._most]]

    def clear(self) -> None:
        """Forget all items."""
        self._heaps.clear()

    def _forget(self, now_s: float) -> None:
        oldest_s = now_s - self._part_s * self._parts
        self._heaps = [part for part in self._heaps if part[0] > oldest_s]
