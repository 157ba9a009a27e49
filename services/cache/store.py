"""The contract of a store, which memory and Redis fulfil alike; tests/contract holds them to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.cache import CacheUsage, Finding, Lookup, Store

    OnFindings = Callable[[list[Finding]], None]


class AnswerStore(Protocol):
    """Values by key. Nothing in it raises: a failure is a miss and counts in usage.failures.

    Used from one event loop.
    """

    usage: CacheUsage

    def exchange(
        self, lookups: Sequence[Lookup], stores: Sequence[Store], on_findings: OnFindings
    ) -> None:
        """Look up, then store. Every lookup is answered exactly once, now or later, together
        with others or alone; without lookups on_findings is not called.
        """

    def refresh(self) -> None:
        """Bring usage up to date where that takes a look."""

    async def close(self) -> None:
        """Let go of everything; lookups that are under way are misses."""
