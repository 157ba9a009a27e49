"""Which responses may enter a cache of bounded size.

While it has space, all. Once it is full, one whose key missed before, within the last so many
misses: responses that are asked for once evict nothing, however many a client asks for. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nereid.core.wire.cache_messages import CacheUsage

# Of one generation of misses; two are kept, about 2 MB in all.
_MAX_MISSES: Final = 16384


class CacheAdmission:
    """Remembers the misses that a full cache did not keep."""

    def __init__(self, max_misses: int = _MAX_MISSES) -> None:
        self._max_misses = max_misses
        # Hashes of keys: no client chooses these, so a collision admits one too early at worst.
        self._misses: set[int] = set()
        self._earlier_misses: set[int] = set()
        # The cache's last report, and what was admitted since.
        self._usage: CacheUsage | None = None
        self._admitted_bytes = 0

    def admit(self, key: bytes, size_bytes: int, usage: CacheUsage) -> bool:
        """Whether to store this response. usage: the cache's last report."""
        capacity_bytes = usage.capacity_bytes
        if not capacity_bytes:
            # Not reported yet, or Redis, which has a policy of its own.
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
