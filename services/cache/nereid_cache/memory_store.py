"""The store that keeps responses in this process's memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nereid.core.wire.cache_messages import CacheUsage, LookupResult
from nereid_cache.lru import LeastRecentlyUsed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.cache_messages import CacheLookup, CacheStore
    from nereid_cache.store import OnFound, OnStored


class MemoryStore:
    """A ResponseStore in memory. time_to_live_s None keeps values until eviction."""

    def __init__(
        self,
        capacity_bytes: int,
        time_to_live_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = LeastRecentlyUsed(capacity_bytes)
        self._time_to_live_s = time_to_live_s
        self._clock = clock
        self.usage = CacheUsage(capacity_bytes=capacity_bytes)

    def exchange(
        self,
        lookups: Sequence[CacheLookup],
        stores: Sequence[CacheStore],
        on_found: OnFound,
        on_stored: OnStored | None = None,
    ) -> None:
        """Store and look up, both within this call; see ResponseStore.exchange."""
        now_s = self._clock()
        usage = self.usage
        started_ns = time.perf_counter_ns()
        kept = [self._store(store, now_s) for store in stores]
        if kept:
            usage.store_ns += time.perf_counter_ns() - started_ns
        if lookups:
            started_ns = time.perf_counter_ns()
            results = [LookupResult(item.id, self._table.get(item.key, now_s)) for item in lookups]
            usage.lookups += len(results)
            usage.hits += sum(result.value is not None for result in results)
            usage.lookup_ns += time.perf_counter_ns() - started_ns
            on_found(results)
        if kept and on_stored is not None:
            on_stored(kept)
        self.refresh_usage()

    def refresh_usage(self) -> None:
        """Update the counters that come from the table: entries, size and evictions."""
        usage, table = self.usage, self._table
        usage.entries, usage.used_bytes = len(table), table.used_bytes
        usage.evictions = table.evictions

    async def close(self) -> None:
        """Drop all values."""
        self._table = LeastRecentlyUsed(0)

    def _store(self, store: CacheStore, now_s: float) -> bool:
        left_s = store.time_to_live_ms / 1000 if store.time_to_live_ms else self._time_to_live_s
        kept = self._table.insert(
            store.key, store.value, None if left_s is None else now_s + left_s
        )
        if kept:
            self.usage.stores += 1
        else:
            self.usage.failures += 1
        return kept
