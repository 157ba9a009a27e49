"""A link to a cache whose results the test sends."""

from collections.abc import Callable

from nereid.core.cache_messages import (
    CacheLookup,
    CacheReply,
    CacheRequest,
    CacheStore,
    LookupResult,
)


class FakeLink:
    """Fulfils CacheLink."""

    def __init__(self) -> None:
        self.up = True
        self.pending = 0
        self.sent: list[CacheRequest] = []
        self.on_items: Callable[[list[CacheReply]], None] = lambda _: None
        self.on_up: Callable[[], None] = lambda: None
        self.on_down: Callable[[], None] = lambda: None
        self._sent_results = 0

    def send(self, item: CacheRequest) -> None:
        self.sent.append(item)

    def close(self) -> None:
        self.up = False

    def lookups(self) -> list[CacheLookup]:
        return [each for each in self.sent if isinstance(each, CacheLookup)]

    def stores(self) -> list[CacheStore]:
        return [each for each in self.sent if isinstance(each, CacheStore)]

    def send_results(self, value: bytes | None) -> None:
        """Send a result to all lookups since the last call."""
        lookups = self.lookups()
        new, self._sent_results = lookups[self._sent_results :], len(lookups)
        self.on_items([LookupResult(each.id, value) for each in new])
