"""The contract of a store, for memory and Redis alike; tests/contract checks both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.cache_messages import CacheLookup, CacheStore, CacheUsage, LookupResult

    OnFound = Callable[[list[LookupResult]], None]
    # Function that is given, for each of an exchange's stores in order, whether it was kept.
    OnStored = Callable[[Sequence[bool]], None]


class StateStoreError(Exception):
    """Schedulers' records cannot be read or written; the text says why."""


class ResponseStore(Protocol):
    """Values by key, used from one event loop.

    No method raises: a failure is a miss and counts in usage.failures.
    """

    usage: CacheUsage

    def exchange(
        self,
        lookups: Sequence[CacheLookup],
        stores: Sequence[CacheStore],
        on_found: OnFound,
        on_stored: OnStored | None = None,
    ) -> None:
        """Store, then look up: a lookup finds the values that the same exchange stores.

        Each callback is called exactly once, now or later, on_found before on_stored; on_found only
        if there are lookups, on_stored only if there are stores.
        """

    def refresh_usage(self) -> None:
        """Update the counters in `usage` that are not counted as events occur."""

    async def close(self) -> None:
        """Release everything; pending lookups are misses."""
