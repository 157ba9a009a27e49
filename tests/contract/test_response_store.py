"""One contract, two stores: memory, and a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from nereid.core.wire.cache_messages import CacheLookup, CacheStore, LookupResult
from nereid_cache.cache_config import LocalConfig, RedisConfig
from nereid_cache.service import make_store
from nereid_cache.store import ResponseStore
from tests.support.peers.redis_server import RedisServer, redis_server
from tests.support.peers.response_stores import (
    LIMIT_S,
    expect_no_lookups,
    look_up,
    store_values,
    with_long_timeouts,
)
from tests.support.waiting import until

MakeStore = Callable[[float], contextlib.AbstractAsyncContextManager[ResponseStore]]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> object:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
def make(request: pytest.FixtureRequest) -> MakeStore:
    config: Callable[[float], LocalConfig | RedisConfig]
    if request.param == "memory":

        def config(ttl: float) -> LocalConfig:
            return LocalConfig(size=1 << 20, ttl=ttl)
    else:
        server: RedisServer = request.getfixturevalue("redis")
        server.command("FLUSHALL")

        def config(ttl: float) -> RedisConfig:
            return with_long_timeouts(RedisConfig(url=server.url, ttl=ttl))

    @contextlib.asynccontextmanager
    async def open_store(ttl: float = 0.0) -> AsyncIterator[ResponseStore]:
        store = make_store(config(ttl))
        try:
            yield store
        finally:
            await store.close()

    return open_store


async def test_what_was_stored_is_found_byte_for_byte(make: MakeStore) -> None:
    values = {b"a": b"1", b"b\r\n\0": bytes(range(256)) * 300, b"\xff": b""}
    async with make(0.0) as store:
        await store_values(store, *(CacheStore(key, value) for key, value in values.items()))
        assert await look_up(store, *values, b"c") == [*values.values(), None]


async def test_the_last_value_counts(make: MakeStore) -> None:
    async with make(0.0) as store:
        await store_values(store, CacheStore(b"a", b"1"), CacheStore(b"a", b"2"))
        await store_values(store, CacheStore(b"a", b"3"))
        assert await look_up(store, b"a", b"a") == [b"3", b"3"]


async def test_a_lookup_finds_what_is_stored_beside_it(make: MakeStore) -> None:
    """Otherwise a request right behind the one that was computed would run again."""
    async with make(0.0) as store:
        done: asyncio.Future[list[LookupResult]] = asyncio.get_running_loop().create_future()
        lookups = [CacheLookup(7, b"a"), CacheLookup(8, b"b")]
        store.exchange(lookups, [CacheStore(b"a", b"1")], done.set_result)
        async with asyncio.timeout(LIMIT_S):
            found = await done
        assert sorted(found) == [LookupResult(7, b"1"), LookupResult(8, None)]


async def until_expired(store: ResponseStore, key: bytes) -> None:
    async def is_gone() -> bool:
        return await look_up(store, key) == [None]

    await until(is_gone, LIMIT_S)


async def test_a_value_ends_at_its_own_time_or_at_the_stores(make: MakeStore) -> None:
    async with make(0.05) as store:
        await store_values(store, CacheStore(b"short", b"1"), CacheStore(b"long", b"2", 60_000))
        await until_expired(store, b"short")
        assert await look_up(store, b"long") == [b"2"]
    async with make(0.0) as store:
        await store_values(store, CacheStore(b"own", b"3", 30), CacheStore(b"ever", b"4"))
        await until_expired(store, b"own")
        assert await look_up(store, b"ever") == [b"4"]


async def test_it_counts(make: MakeStore) -> None:
    async with make(0.0) as store:
        await store_values(store, CacheStore(b"a", b"1"))
        await look_up(store, b"a", b"b", b"a")
        store.refresh_usage()
        usage = store.usage
        assert (usage.lookups, usage.hits, usage.stores, usage.failures) == (4, 2, 1, 0)
        assert usage.lookup_ns > 0
        assert usage.store_ns > 0


async def test_it_reports_which_stores_it_kept(make: MakeStore) -> None:
    async with make(0.0) as store:
        done: asyncio.Future[Sequence[bool]] = asyncio.get_running_loop().create_future()
        store.exchange(
            [], [CacheStore(b"a", b"1"), CacheStore(b"b", b"2")], expect_no_lookups, done.set_result
        )
        async with asyncio.timeout(LIMIT_S):
            assert list(await done) == [True, True]
        assert await look_up(store, b"a", b"b") == [b"1", b"2"]
        await store.close()
        reported: list[Sequence[bool]] = []
        store.exchange([], [CacheStore(b"a", b"3")], expect_no_lookups, reported.append)
        assert reported == [[False]]


async def test_many_exchanges_at_once_each_get_their_own(make: MakeStore) -> None:
    async with make(0.0) as store:
        await store_values(store, *(CacheStore(b"%d" % n, b"v%d" % n) for n in range(200)))
        found = await asyncio.gather(*(look_up(store, b"%d" % n, b"x") for n in range(200)))
        assert found == [[b"v%d" % n, None] for n in range(200)]


async def test_a_closed_store_misses(make: MakeStore) -> None:
    async with make(0.0) as store:
        await store_values(store, CacheStore(b"a", b"1"))
        await store.close()
        assert await look_up(store, b"a") == [None]


async def test_a_caller_may_look_up_again_at_once(make: MakeStore) -> None:
    async with make(0.0) as store, asyncio.timeout(LIMIT_S):
        await store_values(store, CacheStore(b"a", b"1"))
        for _ in range(20):
            assert await look_up(store, b"a") == [b"1"]
        assert store.usage.failures == 0
