"""The lookup of one entry in the response cache."""

# layout: not pure, uses asyncio

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.core.requests.single_flight import Flight


class CacheLookup:
    """Lookup of one entry, and the flight that the entry is in.

        state     event                                                      next state
        (new)     the entry is looked up, digested, or follows another one   waiting
        waiting   the lookup misses or cannot be made: the leader runs       queued
        waiting   the leader has an error of its own: this follower runs     queued
        waiting   the lookup hits, or the leader's response comes            ended
        waiting   the entry is cancelled, or its deadline has passed         ended
        queued    the entry has its response, or is cancelled                ended

    Until its digest is computed, an entry has a flight of its own, which is not in the table.
    """

    __slots__ = (
        "admitted",
        "flight",
        "key",
        "on_queued",
        "revision",
        "timer",
        "waited_ns",
        "waiting",
    )

    def __init__(self, key: bytes, revision: bytes, flight: Flight[Entry]) -> None:
        self.key = key
        self.revision = revision
        self.flight = flight
        self.waiting = True
        # True if the response is to be stored in the cache when it comes.
        self.admitted = True
        # Nanoseconds that the lookup cost: from the entry's arrival until it was queued.
        self.waited_ns = 0
        self.timer: asyncio.TimerHandle | None = None
        # Called when the leader is queued; raises NereidError if this entry must not wait for it.
        self.on_queued: Callable[[], None] | None = None
