"""Addresses, databases and credentials of Redis. Every test ends in LIMIT_S."""

from __future__ import annotations

from pathlib import Path

import pytest

from nereid.core.wire.cache_messages import CacheStore
from nereid_cache.cache_config import RedisConfig
from tests.support.mesh.mesh import free_port
from tests.support.peers.redis_server import Sentinel, redis_server, running
from tests.support.peers.response_stores import (
    look_up,
    open_store_at,
    store_until_found,
    store_values,
    time_limited,
    with_long_timeouts,
)
from tests.support.waiting import until


@time_limited
async def test_namespaces_do_not_see_each_other(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with (
            open_store_at(with_long_timeouts(RedisConfig(url=server.url, namespace="one"))) as one,
            open_store_at(with_long_timeouts(RedisConfig(url=server.url, namespace="two"))) as two,
        ):
            await store_values(one, CacheStore(b"a", b"1"))
            assert await look_up(two, b"a") == [None]
            assert b"one:61" in server.command("KEYS", "*")


@time_limited
async def test_user_and_password(tmp_path: Path) -> None:
    acl = ("--user", "cache", "on", ">geheim", "~*", "+@all", "--requirepass", "another")
    with redis_server(tmp_path, *acl) as server:
        good = RedisConfig(url=server.url, user="cache", password="geheim")
        async with open_store_at(good) as store:
            await store_until_found(store, b"a", b"1")
        async with open_store_at(RedisConfig(url=server.url, user="cache", password="no")) as store:
            assert await look_up(store, b"a") == [None]
            assert store.usage.failures == 1
        async with open_store_at(RedisConfig(url=server.url)) as store:
            assert await look_up(store, b"a") == [None]


@time_limited
async def test_over_tcp_in_another_database(tmp_path: Path) -> None:
    port = free_port()
    with redis_server(tmp_path, "--port", str(port)):
        async with open_store_at(
            with_long_timeouts(RedisConfig(host="127.0.0.1", port=port, db=3))
        ) as store:
            await store_values(store, CacheStore(b"a", b"1"))
            assert await look_up(store, b"a") == [b"1"]
        async with open_store_at(
            with_long_timeouts(RedisConfig(url=f"redis://127.0.0.1:{port}/3"))
        ) as store:
            assert await look_up(store, b"a") == [b"1"]
        async with open_store_at(RedisConfig(url=f"redis://127.0.0.1:{port}")) as store:
            assert await look_up(store, b"a") == [None]


@pytest.mark.slow
@time_limited
async def test_a_cluster(tmp_path: Path) -> None:
    port = free_port()
    # Nodes use port + 10000 among themselves, which must not be an ephemeral port.
    while port > 22_000:
        port = free_port()
    options = ("--port", str(port), "--cluster-enabled", "yes", "--bind", "127.0.0.1")
    with redis_server(tmp_path, *options) as server:
        # By number and in parts: Redis 6 knows no ranges, and a line may have 64 KiB.
        for first in range(0, 16384, 4096):
            server.command("CLUSTER", "ADDSLOTS", *map(str, range(first, first + 4096)))
        await until(lambda: b"cluster_state:ok" in server.command("CLUSTER", "INFO"))
        async with open_store_at(
            with_long_timeouts(RedisConfig(url=f"redis+cluster://127.0.0.1:{port}"))
        ) as store:
            await store_until_found(store, b"a", b"1")
            await store_values(store, *(CacheStore(b"%d" % n, b"v") for n in range(20)))
            assert await look_up(store, *(b"%d" % n for n in range(20))) == [b"v"] * 20


@pytest.mark.slow
@time_limited
async def test_a_master_by_its_sentinel(tmp_path: Path) -> None:
    port, sentinel_port = free_port(), free_port()
    watcher_path = tmp_path / "watcher"
    watcher_path.mkdir()
    with (
        redis_server(tmp_path, "--port", str(port)),
        running(Sentinel(watcher_path, sentinel_port, port)),
    ):
        url = f"redis+sentinel://127.0.0.1:{sentinel_port}/mymaster"
        async with open_store_at(RedisConfig(url=url)) as store:
            await store_until_found(store, b"a", b"1")
