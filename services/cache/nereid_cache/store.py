"""The contract of a store, in memory or in Redis; tests/contract checks both stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.cache_messages import CacheLookup, CacheStore, CacheUsage, LookupResult

    OnFound = Callable[[list[LookupResult]], None]
    # Receives one value per store of the exchange: true if the value was kept.
    OnStored = Callable[[Sequence[bool]], None]


class StateStoreError(Exception):
    """Error for schedulers' records that cannot be read or written; the text says why."""


class ResponseStore(Protocol):
    """Values by key; only one event loop may use the store.

    No method raises. A failure counts as a miss and in usage.failures.
    """

    usage: CacheUsage

    def exchange(
        self,
        lookups: Sequence[CacheLookup],
        stores: Sequence[CacheStore],
        on_found: OnFound,
        on_stored: OnStored | None = None,
    ) -> None:
        """Store, then look up, so a lookup finds the values that the same exchange stores.

        on_found is called once if there are lookups, then on_stored once if there are stores.
        """

    def refresh_usage(self) -> None:
        """Update those counters in `usage` that are not updated as events occur."""

    async def close(self) -> None:
        """Release all resources; pending lookups become misses."""
