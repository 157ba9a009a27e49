"""A link to a cache whose answers the test gives."""

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
        self._told = 0

    def send(self, item: ToCache) -> None:
        self.sent.append(item)

    def close(self) -> None:
        self.up = False

    def lookups(self) -> list[Lookup]:
        return [each for each in self.sent if isinstance(each, Lookup)]

    def stores(self) -> list[Store]:
        return [each for each in self.sent if isinstance(each, Store)]

    def tell(self, value: bytes | None) -> None:
        """Answer all lookups that came since the last time."""
        lookups = self.lookups()
        news, self._told = lookups[self._told :], len(lookups)
        self.on_items([Finding(each.id, value) for each in news])
