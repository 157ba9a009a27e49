"""A link to a cache whose results the test sends, and the secrets of its scheduler."""

from collections.abc import Callable

from nereid.core.wire.cache_messages import (
    CacheLookup,
    CacheReply,
    CacheRequest,
    CacheStore,
    LookupResult,
)
from nereid_scheduler.versions.caching.cache_secrets import cache_secrets, cache_seed
from nereid_scheduler.versions.caching.cached_values import ValueSeal

SECRETS = cache_secrets(cache_seed(b"the key of these tests"))


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

    def send_sealed(self, value: bytes) -> None:
        """Send all lookups since the last call a value that the scheduler with SECRETS stored."""
        seal = ValueSeal(SECRETS.value_key)
        lookups = self.lookups()
        new, self._sent_results = lookups[self._sent_results :], len(lookups)
        self.on_items([LookupResult(each.id, seal.seal(each.key, value)) for each in new])
