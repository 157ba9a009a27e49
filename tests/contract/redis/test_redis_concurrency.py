"""Many concurrent callers of a Redis that is killed, paused, full or flushed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nereid.core.wire.cache_messages import (
    CacheLookup,
    CacheReply,
    CacheRequest,
    CacheStore,
    CacheUsage,
    LookupResult,
)
from nereid.rpc import Link, memory_links
from nereid_cache.cache_config import RedisConfig
from nereid_cache.service import CacheService, make_store
from nereid_cache.store import ResponseStore
from tests.support.mesh.mesh import free_port
from tests.support.peers.redis_server import RedisServer, Sentinel, redis_server, running
from tests.support.peers.response_stores import (
    SLACK_S,
    look_up,
    open_store_at,
    time_limited,
    with_long_timeouts,
)
from tests.support.waiting import until

OnFound = Callable[[list[LookupResult]], None]
OnStored = Callable[[Sequence[bool]], None]
_CALLERS = 32
_TIMES_MS = 100
# A sentinel takes seconds to detect a failure and elect a master.
_FAILOVER_S = 40.0
# A lookup takes at most its waiting time, then a pipeline's: a connect and a reply.
_LATEST_S = 3 * _TIMES_MS / 1000


def with_short_timeouts(server: RedisServer, connections: int = 1) -> RedisConfig:
    return RedisConfig(
        url=server.url,
        connect_timeout=_TIMES_MS,
        socket_timeout=_TIMES_MS,
        wait_timeout=_TIMES_MS,
        pool_size=connections,
    )


@dataclass(slots=True)
class Crowd:
    """What many concurrent callers have seen so far; a wrong value raises in run()."""

    hits: int = 0
    misses: int = 0
    latest_s: float = 0.0

    async def run(self, store: ResponseStore) -> None:
        async with asyncio.TaskGroup() as callers:
            for caller in range(_CALLERS):
                callers.create_task(self._call(store, caller))

    async def _call(self, store: ResponseStore, caller: int) -> None:
        # Callers share keys, the value follows from the key, and lengths differ: a mixed-up or
        # misaligned reply is noticed.
        for turn in itertools.count():
            key = b"%d" % ((caller * 7 + turn) % 50)
            asked_s = time.monotonic()
            found = await look_up(store, key, b"never", key)
            self.latest_s = max(self.latest_s, time.monotonic() - asked_s)
            assert found[1] is None
            for value in (found[0], found[2]):
                assert value in (None, value_of(key))
            self.hits += found[0] is not None
            self.misses += found[0] is None
            store.exchange([], [CacheStore(key, value_of(key))], lambda _: None)
            await asyncio.sleep(0.005)

    async def until(self, count: Callable[[], int]) -> None:
        """Until it has grown by some for each caller."""
        enough = count() + 3 * _CALLERS
        await until(lambda: count() >= enough, _FAILOVER_S)

    async def until_hits(self) -> None:
        await self.until(lambda: self.hits)

    async def until_misses(self) -> None:
        await self.until(lambda: self.misses)


def value_of(key: bytes) -> bytes:
    return key * (1 + int(key) * 20)


@contextlib.asynccontextmanager
async def crowd_at(store: ResponseStore) -> AsyncIterator[Crowd]:
    """Callers that have had hits when the block begins, and again when it ends."""
    crowd = Crowd()
    running_crowd = asyncio.create_task(crowd.run(store))
    me = asyncio.current_task()
    assert me is not None
    # A caller that sees something wrong ends the test, which may be waiting for something else.
    running_crowd.add_done_callback(lambda task: None if task.cancelled() else me.cancel())
    try:
        await crowd.until_hits()
        yield crowd
        await crowd.until_hits()
    finally:
        running_crowd.cancel()
        await asyncio.wait([running_crowd])
        if not running_crowd.cancelled():
            running_crowd.result()
    assert crowd.latest_s < _LATEST_S + SLACK_S


@pytest.mark.slow
async def test_a_replica_replaces_a_master_that_dies_amid_callers(tmp_path: Path) -> None:
    first, second, sentinel_port = free_port(), free_port(), free_port()
    places = [tmp_path / name for name in ("master", "replica", "watcher")]
    for place in places:
        place.mkdir()
    secret = ("--requirepass", "geheim", "--masterauth", "geheim")
    watched = (
        "auth-pass mymaster geheim",
        "down-after-milliseconds mymaster 300",
        "failover-timeout mymaster 3000",
    )
    with (
        redis_server(places[0], "--port", str(first), *secret) as master,
        redis_server(
            places[1], "--port", str(second), "--replicaof", "127.0.0.1", str(first), *secret
        ),
        running(Sentinel(places[2], sentinel_port, first, *watched)) as watcher,
    ):
        # Only a replica that the sentinel knows to be in sync can be promoted.
        synced = b"master-link-status\r\n$2\r\nok"
        await until(
            lambda: synced in watcher.command("SENTINEL", "REPLICAS", "mymaster"), _FAILOVER_S
        )
        url = f"redis+sentinel://127.0.0.1:{sentinel_port}/mymaster"
        config = replace(with_short_timeouts(master), url=url, password="geheim")
        async with open_store_at(config) as store, crowd_at(store) as crowd:
            master.kill()
            await crowd.until_misses()
            # From here on hits come from the replica.
            await crowd.until_hits()
            reply = watcher.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")
        assert str(second).encode() in reply


class ThroughService:
    """A ResponseStore over a link to the cache service, as a scheduler uses it."""

    def __init__(self, service: CacheService) -> None:
        near: Link[CacheRequest]
        far: Link[CacheReply]
        near, far = memory_links()
        near.on_items = self._on_items
        service.attach(far)
        self._link = near
        self._numbers = itertools.count()
        self._pending: dict[int, tuple[int, OnFound]] = {}
        self.usage = CacheUsage()

    def exchange(
        self,
        lookups: Sequence[CacheLookup],
        stores: Sequence[CacheStore],
        on_found: OnFound,
        on_stored: OnStored | None = None,
    ) -> None:
        assert on_stored is None, "a link does not report stores"
        results: list[LookupResult] = []

        def gather(some: list[LookupResult]) -> None:
            results.extend(some)
            if len(results) == len(lookups):
                on_found(results)

        for lookup in lookups:
            number = next(self._numbers)
            self._pending[number] = lookup.id, gather
            self._link.send(CacheLookup(number, lookup.key))
        for store in stores:
            self._link.send(store)

    def refresh_usage(self) -> None:
        pass

    async def close(self) -> None:
        self._link.close()

    def _on_items(self, items: list[CacheReply]) -> None:
        for item in items:
            if isinstance(item, CacheUsage):
                self.usage = item
            else:
                own, gather = self._pending.pop(item.id)
                gather([LookupResult(own, item.value)])


@pytest.mark.slow
@time_limited
async def test_the_service_amid_callers(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        service = CacheService(make_store(with_short_timeouts(server)))
        try:
            async with crowd_at(ThroughService(service)) as crowd:
                server.pause()
                await crowd.until_misses()
                server.resume()
                await crowd.until_hits()
                server.kill()
                await crowd.until_misses()
                Path(server.path).unlink(missing_ok=True)
                await asyncio.to_thread(server.start)
            assert service.usage.failures > 0
        finally:
            await service.close()


@pytest.mark.slow
@pytest.mark.parametrize("connections", [1, 4])
@time_limited
async def test_killed_amid_callers(tmp_path: Path, connections: int) -> None:
    with redis_server(tmp_path) as server:
        async with (
            open_store_at(with_short_timeouts(server, connections)) as store,
            crowd_at(store) as crowd,
        ):
            server.kill()
            await crowd.until_misses()
            Path(server.path).unlink(missing_ok=True)
            await asyncio.to_thread(server.start)


@pytest.mark.slow
@pytest.mark.parametrize("connections", [1, 4])
@time_limited
async def test_paused_amid_callers(tmp_path: Path, connections: int) -> None:
    with redis_server(tmp_path) as server:
        async with (
            open_store_at(with_short_timeouts(server, connections)) as store,
            crowd_at(store) as crowd,
        ):
            for _ in range(2):
                server.pause()
                await crowd.until_misses()
                server.resume()
                await crowd.until_hits()


@pytest.mark.slow
@time_limited
async def test_full_amid_callers(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--maxmemory-policy", "noeviction") as server:
        async with open_store_at(with_short_timeouts(server)) as store, crowd_at(store) as crowd:
            server.command("CONFIG", "SET", "maxmemory", "1")
            failures = store.usage.failures
            await crowd.until(lambda: store.usage.failures)
            assert store.usage.failures > failures
            # Stored values are still found.
            await crowd.until_hits()
            server.command("FLUSHALL")
            await crowd.until_misses()
            server.command("CONFIG", "SET", "maxmemory", "0")


@pytest.mark.slow
@time_limited
async def test_flushed_amid_callers(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        config = with_long_timeouts(RedisConfig(url=server.url))
        async with open_store_at(config) as store, crowd_at(store) as crowd:
            for _ in range(5):
                misses = crowd.misses
                server.command("FLUSHALL")
                await until(lambda before=misses: crowd.misses > before)
                await crowd.until_hits()
            assert store.usage.failures == 0
