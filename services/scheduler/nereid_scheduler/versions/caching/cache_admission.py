"""Decides which responses may enter a cache of bounded size.

Once the cache is full, a response may enter only if its key is among the recent misses. So
responses that are requested only once evict nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nereid.core.wire.cache_messages import CacheUsage

# Misses per generation. Two generations are kept, about 2 MB together.
_MAX_MISSES: Final = 16384


class CacheAdmission:
    """Remember recent misses, which decide what responses a full cache stores."""

    def __init__(self, max_misses: int = _MAX_MISSES) -> None:
        self._max_misses = max_misses
        # Hashes of keys, which clients cannot choose. A collision does no harm.
        self._misses: set[int] = set()
        self._earlier_misses: set[int] = set()
        # Last report of the cache, and the bytes that were admitted since.
        self._usage: CacheUsage | None = None
        self._admitted_bytes = 0

    def admit(self, key: bytes, size_bytes: int, usage: CacheUsage) -> bool:
        """Return whether to store this response. usage: last report of the cache."""
        capacity_bytes = usage.capacity_bytes
        if not capacity_bytes:
            # There is no report yet, or the store is Redis, which has its own policy.
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
