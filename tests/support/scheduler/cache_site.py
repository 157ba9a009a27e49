"""A link to a cache whose results the test sends."""

from collections.abc import Callable

from nereid.core.cache_messages import Finding, FromCache, Lookup, Store, ToCache


class FakeLink:
    """Fulfils CacheLink."""

    def __init__(self) -> None:
        self.up = True
        self.pending = 0
        self.sent: list[ToCache] = []
        self.on_items: Callable[[list[FromCache]], None] = lambda _: None
        self.on_up: Callable[[], None] = lambda: None
        self.on_down: Callable[[], None] = lambda: None
        self._sent_results = 0

    def send(self, item: ToCache) -> None:
        self.sent.append(item)

    def close(self) -> None:
        self.up = False

    def lookups(self) -> list[Lookup]:
        return [each for each in self.sent if isinstance(each, Lookup)]

    def stores(self) -> list[Store]:
        return [each for each in self.sent if isinstance(each, Store)]

    def send_results(self, value: bytes | None) -> None:
        """Send a result to all lookups since the last call."""
        lookups = self.lookups()
        new, self._sent_results = lookups[self._sent_results :], len(lookups)
        self.on_items([Finding(each.id, value) for each in new])
