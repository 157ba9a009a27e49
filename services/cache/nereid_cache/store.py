"""The contract of a store, which memory and Redis fulfil alike; tests/contract holds them to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.cache_messages import CacheLookup, CacheStore, CacheUsage, LookupResult

    OnFound = Callable[[list[LookupResult]], None]
    # Whether each of an exchange's stores was kept, in their order.
    OnStored = Callable[[Sequence[bool]], None]


class StateStoreError(Exception):
    """Schedulers' records cannot be read or written; the text says why."""


class ResponseStore(Protocol):
    """Values by key. Nothing in it raises: a failure is a miss and counts in usage.failures.

    Used from one event loop.
    """

    usage: CacheUsage

    def exchange(
        self,
        lookups: Sequence[CacheLookup],
        stores: Sequence[CacheStore],
        on_found: OnFound,
        on_stored: OnStored | None = None,
    ) -> None:
        """Store, then look up: a lookup finds what the same exchange stores.

        Each callback is called exactly once, now or later, on_found before on_stored; on_found only
        if there are lookups, on_stored only if there are stores.
        """

    def refresh_usage(self) -> None:
        """Update what usage does not count as it happens."""

    async def close(self) -> None:
        """Release everything; pending lookups are misses."""
