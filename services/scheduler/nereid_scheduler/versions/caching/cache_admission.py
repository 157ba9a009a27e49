"""Decides which responses may enter a cache of bounded size.

While the cache has space, all may enter. Once it is full, only a response may enter whose key has
missed before, within a number of recent misses: responses that are requested once evict nothing,
however many of them a client requests. It is pure and knows no link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nereid.core.wire.cache_messages import CacheUsage

# Limit for one generation of misses; two are kept, about 2 MB in all.
_MAX_MISSES: Final = 16384


class CacheAdmission:
    """Remember the misses that a full cache did not keep."""

    def __init__(self, max_misses: int = _MAX_MISSES) -> None:
        self._max_misses = max_misses
        # Hashes of keys. No client chooses them, so that a collision at worst admits one too early.
        self._misses: set[int] = set()
        self._earlier_misses: set[int] = set()
        # Last report of the cache, and the bytes that have been admitted since.
        self._usage: CacheUsage | None = None
        self._admitted_bytes = 0

    def admit(self, key: bytes, size_bytes: int, usage: CacheUsage) -> bool:
        """Return whether to store this response; `usage` is the cache's last report."""
        capacity_bytes = usage.capacity_bytes
        if not capacity_bytes:
            # The capacity is not reported yet, or the store is Redis with a policy of its own.
            return True
        if size_bytes > capacity_bytes:
            return False
        if usage is not self._usage:
            self._usage, self._admitted_bytes = usage, 0
        if usage.used_bytes + self._admitted_bytes + size_bytes > capacity_bytes:
            hashed = hash(key)
            if hashed not in self._misses and hashed not in self._earlier_misses:
                self._remember(hashed)
                return False
        self._admitted_bytes += size_bytes
        return True

    def _remember(self, hashed: int) -> None:
        if len(self._misses) >= self._max_misses:
            self._earlier_misses, self._misses = self._misses, set()
        self._misses.add(hashed)
