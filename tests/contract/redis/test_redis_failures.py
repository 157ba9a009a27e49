"""Failures that only a Redis store can have. Every test ends in LIMIT_S."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nereid.core.wire.cache_messages import CacheLookup, CacheStore, LookupResult
from nereid_cache.cache_config import RedisConfig
from nereid_cache.redis_client import make_client
from nereid_cache.redis_store import RedisOptions, RedisStore
from nereid_cache.service import make_state
from tests.support.peers.redis_server import RedisServer, redis_server
from tests.support.peers.response_stores import (
    SLACK_S,
    look_up,
    open_store_at,
    store_until_found,
    store_values,
    time_limited,
)


@time_limited
async def test_paused_it_misses_after_the_socket_timeout(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with open_store_at(RedisConfig(url=server.url, socket_timeout=50)) as store:
            await store_values(store, CacheStore(b"a", b"1"))
            server.pause()
            assert await look_up(store, b"a", b"b") == [None, None]
            server.resume()
            await store_until_found(store, b"a", b"1")
            assert store.usage.failures >= 2


@contextlib.asynccontextmanager
async def closing(store: RedisStore) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await store.close()


@time_limited
async def test_waiting_exchanges_are_bounded(tmp_path: Path) -> None:
    options = RedisOptions(max_waiting_lookups=3, max_waiting_bytes=10)
    with redis_server(tmp_path) as server:
        store = RedisStore(make_client(RedisConfig(url=server.url)), options)
        async with closing(store):
            found: list[list[LookupResult]] = []
            store.exchange([CacheLookup(1, b"a"), CacheLookup(2, b"b")], [], found.append)
            store.exchange([CacheLookup(3, b"a"), CacheLookup(4, b"b")], [], found.append)
            assert found == [[LookupResult(3, None), LookupResult(4, None)]]
            store.exchange([], [CacheStore(b"a", b"x" * 11)], found.append)
            assert store.usage.failures == 3
            assert await look_up(store, b"a") == [None]


@time_limited
async def test_a_full_redis_finds_what_it_has_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with redis_server(tmp_path) as server:
        async with open_store_at(RedisConfig(url=server.url)) as store:
            await store_values(store, CacheStore(b"a", b"1"))
            # As by a tenant who fills it, without a policy that evicts.
            assert server.command("CONFIG", "SET", "maxmemory", "1").startswith(b"+OK")
            for _ in range(3):
                await store_values(store, CacheStore(b"b", b"2"))
                assert await look_up(store, b"a", b"b") == [b"1", None]
            assert store.usage.failures == 3
            assert server.command("CONFIG", "SET", "maxmemory", "0").startswith(b"+OK")
            await store_until_found(store, b"b", b"2")
    changes = [line for line in caplog.messages if "Redis" in line]
    assert len(changes) == 2
    assert "takes no values; earlier ones are still found: OutOfMemoryError" in changes[0]
    assert changes[1] == "Redis takes values again"


@time_limited
async def test_the_user_of_the_page_may_do_what_the_cache_does_and_no_more(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs/operators/cache.md"
    (rule,) = re.findall(r"^ACL SETUSER .*$", page.read_text(), re.MULTILINE)
    with redis_server(tmp_path) as server:
        assert server.command(*rule.split()).startswith(b"+OK")
        url = server.url.replace("//", "//nereid:PASSWORD@", 1)
        config = RedisConfig(url=url, namespace="shared")
        async with open_store_at(config) as store:
            await store_values(store, CacheStore(b"a", b"1"))
            assert await look_up(store, b"a", b"b") == [b"1", None]
        state = make_state(config)
        assert state is not None
        server.command("SET", "shared:nereid-state:{mesh}", "another type")
        assert await state.read_all("mesh") == {}
        name = "0" * 32
        assert await state.write("mesh", name, b"1\n", b"", {"aa": b"a"})
        assert await state.read("mesh", name) == b"1\n"
        assert await state.read_files("mesh", name, ["aa"]) == {"aa": b"a"}
        await state.set_aside("mesh", name)
        assert await state.write("mesh", name, b"", b"", {})
        await state.close()
        async with open_store_at(RedisConfig(url=url, namespace="others")) as others:
            await store_values(others, CacheStore(b"a", b"1"))
            # The store, and the lookup after it.
            assert others.usage.failures == 2


@time_limited
async def test_a_value_larger_than_any_that_was_stored_is_a_miss(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        client = make_client(RedisConfig(url=server.url))
        store = RedisStore(client, RedisOptions(max_waiting_bytes=10))
        async with closing(store):
            await store_values(store, CacheStore(b"a", b"x" * 10))
            server.command("SET", b"b".hex(), "x" * 11)
            assert await look_up(store, b"a", b"b") == [b"x" * 10, None]
            assert (store.usage.hits, store.usage.failures) == (1, 1)


@time_limited
async def test_an_exchange_that_waited_too_long_is_a_miss(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        client = make_client(RedisConfig(url=server.url))
        store = RedisStore(client, RedisOptions(wait_timeout_s=-1.0))
        assert await look_up(store, b"a") == [None]
        assert store.usage.failures == 1
        await store.close()


@contextlib.asynccontextmanager
async def dripping(server: RedisServer, path: Path, pause_s: float) -> AsyncIterator[asyncio.Event]:
    """A proxy of the server; once the event is set, it delays every line of the replies."""
    slow = asyncio.Event()
    connections: set[asyncio.Task[None]] = set()

    async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)

    async def drip(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                for line in data.splitlines(keepends=True):
                    if slow.is_set():
                        await asyncio.sleep(pause_s)
                    sink.write(line)

    async def open_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        connections.add(connection)
        there, back = await asyncio.open_unix_connection(server.path)
        both = [
            asyncio.create_task(forward(reader, back)),
            asyncio.create_task(drip(there, writer)),
        ]
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            back.close()
            writer.close()

    listening = await asyncio.start_unix_server(open_connection, path)
    try:
        yield slow
    finally:
        listening.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


@pytest.mark.slow
@time_limited
async def test_dripping_replies_are_timed_out_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "dripping.sock"
    with redis_server(tmp_path) as server:
        config = RedisConfig(url=f"unix://{path}", connect_timeout=100, socket_timeout=100)
        async with dripping(server, path, 0.06) as slow, open_store_at(config) as store:
            await store_values(store, CacheStore(b"a", b"1"))
            slow.set()
            asked_s = time.monotonic()
            # Each reply is in time for the socket; all of them would take twelve seconds.
            assert await look_up(store, *[b"nothing"] * 200) == [None] * 200
            assert time.monotonic() - asked_s < 0.2 + SLACK_S
            assert store.usage.failures >= 200
            slow.clear()
            await store_until_found(store, b"a", b"1")


# What a server sends that is no Redis, or no longer in its right mind: once, or without end.
_MIB = 1 << 20
HOSTILE_REPLIES = {
    "nothing, and the end": (b"", b""),
    "garbage": (b"garbage\r\n", b""),
    "errors": (b"-ERR no\r\n" * 100, b""),
    "an error and no more": (b"-LOADING\r\n", b""),
    "a length below zero": (b"$-5\r\n", b""),
    "a length beyond memory": (b"$999999999999\r\n", b""),
    "a value without end": (b"$2000000000\r\n", b"x" * _MIB),
    "a line without end": (b"+", b"x" * _MIB),
    "messages without end": (b"", b">2\r\n+invalidate\r\n+x\r\n" * 1000),
    "arrays in arrays": (b"*1\r\n" * 100_000, b""),
    "a number of a megabyte": (b":" + b"9" * _MIB + b"\r\n", b""),
    "bytes of no meaning": (bytes(range(256)) * 100, b""),
}


@contextlib.asynccontextmanager
async def replying(path: Path, once: bytes, endless: bytes) -> AsyncIterator[None]:
    """A server that replies so to whatever it is sent; it closes the connection if to nothing."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read(1)
            writer.write(once)
            while endless:
                await writer.drain()
                writer.write(endless)
            while once and await reader.read(65536):
                pass
        writer.close()

    server = await asyncio.start_unix_server(reply, path)
    try:
        yield
    finally:
        server.close()


@pytest.mark.parametrize("name", HOSTILE_REPLIES)
@time_limited
async def test_hostile_replies_are_misses_in_time(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hostile.sock"
    config = RedisConfig(url=f"unix://{path}", connect_timeout=200, socket_timeout=200)
    async with replying(path, *HOSTILE_REPLIES[name]), open_store_at(config) as store:
        asked_s = time.monotonic()
        for _ in range(2):
            store.exchange([], [CacheStore(b"a", b"1")], lambda _: None)
            assert await look_up(store, b"a", b"b") == [None, None]
        # Two pipelines at most for each, with a connection and a reply.
        assert time.monotonic() - asked_s < 4 * 0.4 + SLACK_S
        assert store.usage.hits == store.usage.stores == 0
        assert store.usage.failures >= 4


@time_limited
async def test_waiting_exchanges_miss_in_time_while_redis_blocks_the_one_before(
    tmp_path: Path,
) -> None:
    with redis_server(tmp_path) as server:
        # For ever, as far as the socket is concerned.
        async with open_store_at(
            RedisConfig(url=server.url, socket_timeout=0, wait_timeout=50)
        ) as store:
            await store_values(store, CacheStore(b"a", b"1"))
            server.pause()
            held = asyncio.create_task(look_up(store, b"a"))
            await asyncio.sleep(0)
            asked_s = time.monotonic()
            assert await asyncio.gather(*(look_up(store, b"a") for _ in range(5))) == [[None]] * 5
            assert time.monotonic() - asked_s < 0.05 + SLACK_S
            assert not held.done()
            server.resume()
            assert await held == [b"1"]
