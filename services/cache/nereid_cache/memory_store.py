"""The store in this process's memory. Knows no link."""

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
    """Fulfils ResponseStore. time_to_live_s: of values that come without one."""

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
        now_s = self._clock()
        usage = self.usage
        started_ns = time.perf_counter_ns()
        kept = [self._store(each, now_s) for each in stores]
        if kept:
            usage.store_ns += time.perf_counter_ns() - started_ns
        if lookups:
            started_ns = time.perf_counter_ns()
            results = [LookupResult(each.id, self._table.get(each.key, now_s)) for each in lookups]
            usage.lookups += len(results)
            usage.hits += sum(each.value is not None for each in results)
            usage.lookup_ns += time.perf_counter_ns() - started_ns
            on_found(results)
        if kept and on_stored is not None:
            on_stored(kept)
        self.refresh_usage()

    def refresh_usage(self) -> None:
        usage, table = self.usage, self._table
        usage.entries, usage.used_bytes = len(table), table.used_bytes
        usage.evictions = table.evictions

    async def close(self) -> None:
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
