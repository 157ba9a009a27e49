"""What many callers at once see of a Redis that dies, stands still, is full or is emptied."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nereid.core.cache_messages import CacheUsage, Finding, FromCache, Lookup, Store, ToCache
from nereid.rpc import Link, memory_links
from nereid.services.cache.cache_config import RedisConfig
from nereid.services.cache.service import CacheService, make_store
from nereid.services.cache.store import ResponseStore
from tests.support.mesh.mesh import free_port
from tests.support.peers.redis_server import RedisServer, Sentinel, redis_server, running
from tests.support.peers.response_stores import SLACK_S, bounded, find, patient, store_at

OnFindings = Callable[[list[Finding]], None]
OnStored = Callable[[Sequence[bool]], None]
_CALLERS = 32
_TIMES_MS = 100
# A sentinel takes seconds to be sure and to choose.
_FAILOVER_S = 40.0
# An answer waits at most its time in line, then a pipeline's: a connection's and an answer's.
_LATEST_S = 3 * _TIMES_MS / 1000


def impatient(server: RedisServer, connections: int = 1) -> RedisConfig:
    return RedisConfig(
        url=server.url,
        connect_timeout=_TIMES_MS,
        socket_timeout=_TIMES_MS,
        wait_timeout=_TIMES_MS,
        pool_size=connections,
    )


@dataclass(slots=True)
class Crowd:
    """What many callers at once have seen so far. Whatever is wrong ends it by an exception."""

    hits: int = 0
    misses: int = 0
    latest_s: float = 0.0

    async def come(self, store: ResponseStore) -> None:
        async with asyncio.TaskGroup() as callers:
            for caller in range(_CALLERS):
                callers.create_task(self._ask(store, caller))

    async def _ask(self, store: ResponseStore, caller: int) -> None:
        # Callers share keys, the value follows from the key, and lengths differ: what belongs to
        # another key, or begins in the middle, is seen.
        for turn in itertools.count():
            key = b"%d" % ((caller * 7 + turn) % 50)
            asked_s = time.monotonic()
            found = await find(store, key, b"never", key)
            self.latest_s = max(self.latest_s, time.monotonic() - asked_s)
            assert found[1] is None
            for value in (found[0], found[2]):
                assert value in (None, value_of(key))
            self.hits += found[0] is not None
            self.misses += found[0] is None
            store.exchange([], [Store(key, value_of(key))], lambda _: None)
            await asyncio.sleep(0.005)

    async def until(self, count: Callable[[], int]) -> None:
        """Until it has grown by some for each caller."""
        enough = count() + 3 * _CALLERS
        while count() < enough:
            await asyncio.sleep(0.005)

    async def until_hits(self) -> None:
        await self.until(lambda: self.hits)

    async def until_misses(self) -> None:
        await self.until(lambda: self.misses)


def value_of(key: bytes) -> bytes:
    return key * (1 + int(key) * 20)


@contextlib.asynccontextmanager
async def crowd_at(store: ResponseStore) -> AsyncIterator[Crowd]:
    """Callers at work, who have found what they look for when the block begins and ends."""
    crowd = Crowd()
    coming = asyncio.create_task(crowd.come(store))
    me = asyncio.current_task()
    assert me is not None
    # A caller that sees something wrong ends the test, which may be waiting for something else.
    coming.add_done_callback(lambda task: None if task.cancelled() else me.cancel())
    try:
        await crowd.until_hits()
        yield crowd
        await crowd.until_hits()
    finally:
        coming.cancel()
        await asyncio.wait([coming])
        if not coming.cancelled():
            coming.result()
    assert crowd.latest_s < _LATEST_S + SLACK_S


@pytest.mark.slow
async def test_a_master_that_dies_amid_callers_has_its_replica_follow(tmp_path: Path) -> None:
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
        async with asyncio.timeout(_FAILOVER_S):
            # Only one that it knows, and knows to be in step, can follow.
            while b"master-link-status\r\n$2\r\nok" not in watcher.command(
                "SENTINEL", "REPLICAS", "mymaster"
            ):
                await asyncio.sleep(0.02)
            url = f"redis+sentinel://127.0.0.1:{sentinel_port}/mymaster"
            config = replace(impatient(master), url=url, password="geheim")
            async with store_at(config) as store, crowd_at(store) as crowd:
                master.kill()
                await crowd.until_misses()
                # Nobody else holds what is found from here on.
                await crowd.until_hits()
                told = watcher.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")
            assert str(second).encode() in told


class ThroughService:
    """An ResponseStore as a scheduler sees it: a link, with the cache service behind."""

    def __init__(self, service: CacheService) -> None:
        near: Link[ToCache]
        far: Link[FromCache]
        near, far = memory_links()
        near.on_items = self._on_items
        service.attach(far)
        self._link = near
        self._numbers = itertools.count()
        self._asked: dict[int, tuple[int, OnFindings]] = {}
        self.usage = CacheUsage()

    def exchange(
        self,
        lookups: Sequence[Lookup],
        stores: Sequence[Store],
        on_findings: OnFindings,
        on_stored: OnStored | None = None,
    ) -> None:
        assert on_stored is None, "a link does not tell"
        together: list[Finding] = []

        def gather(findings: list[Finding]) -> None:
            together.extend(findings)
            if len(together) == len(lookups):
                on_findings(together)

        for lookup in lookups:
            number = next(self._numbers)
            self._asked[number] = lookup.id, gather
            self._link.send(Lookup(number, lookup.key))
        for store in stores:
            self._link.send(store)

    def refresh(self) -> None:
        pass

    async def close(self) -> None:
        self._link.close()

    def _on_items(self, items: list[FromCache]) -> None:
        for item in items:
            if isinstance(item, CacheUsage):
                self.usage = item
            else:
                own, gather = self._asked.pop(item.id)
                gather([Finding(own, item.value)])


@pytest.mark.slow
@bounded
async def test_the_service_amid_callers(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        service = CacheService(make_store(impatient(server)))
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
@bounded
async def test_killed_amid_callers(tmp_path: Path, connections: int) -> None:
    with redis_server(tmp_path) as server:
        async with (
            store_at(impatient(server, connections)) as store,
            crowd_at(store) as crowd,
        ):
            server.kill()
            await crowd.until_misses()
            Path(server.path).unlink(missing_ok=True)
            await asyncio.to_thread(server.start)


@pytest.mark.slow
@pytest.mark.parametrize("connections", [1, 4])
@bounded
async def test_paused_amid_callers(tmp_path: Path, connections: int) -> None:
    with redis_server(tmp_path) as server:
        async with (
            store_at(impatient(server, connections)) as store,
            crowd_at(store) as crowd,
        ):
            for _ in range(2):
                server.pause()
                await crowd.until_misses()
                server.resume()
                await crowd.until_hits()


@pytest.mark.slow
@bounded
async def test_full_amid_callers(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--maxmemory-policy", "noeviction") as server:
        async with store_at(impatient(server)) as store, crowd_at(store) as crowd:
            server.command("CONFIG", "SET", "maxmemory", "1")
            failures = store.usage.failures
            await crowd.until(lambda: store.usage.failures)
            assert store.usage.failures > failures
            # What it has, it still gives.
            await crowd.until_hits()
            server.command("FLUSHALL")
            await crowd.until_misses()
            server.command("CONFIG", "SET", "maxmemory", "0")


@pytest.mark.slow
@bounded
async def test_flushed_amid_callers(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        config = patient(RedisConfig(url=server.url))
        async with store_at(config) as store, crowd_at(store) as crowd:
            for _ in range(5):
                misses = crowd.misses
                server.command("FLUSHALL")
                while crowd.misses == misses:
                    await asyncio.sleep(0.005)
                await crowd.until_hits()
            assert store.usage.failures == 0
