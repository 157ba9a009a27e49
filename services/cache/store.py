"""The contract of a store, which memory and Redis fulfil alike; tests/contract holds them to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.cache_messages import CacheUsage, Finding, Lookup, Store

    OnFindings = Callable[[list[Finding]], None]
    # Whether each of an exchange's stores is kept, in their order.
    OnStored = Callable[[Sequence[bool]], None]


class ResponseStore(Protocol):
    """Values by key. Nothing in it raises: a failure is a miss and counts in usage.failures.

    Used from one event loop.
    """

    usage: CacheUsage

    def exchange(
        self,
        lookups: Sequence[Lookup],
        stores: Sequence[Store],
        on_findings: OnFindings,
        on_stored: OnStored | None = None,
    ) -> None:
        """Store, then look up, so that who asks right behind a store finds it. Each callback is
        called exactly once, now or later, on_findings before on_stored; not without anything to
        look up or to store.
        """

    def refresh(self) -> None:
        """Bring usage up to date where that takes a look."""

    async def close(self) -> None:
        """Let go of everything; lookups that are under way are misses."""
