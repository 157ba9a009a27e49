"""How a Redis may be reached, and what is asked of it there. Every test ends in LIMIT_S."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nereid.core.cache_messages import Store
from nereid.services.cache.cache_config import RedisConfig
from tests.support.mesh.mesh import free_port
from tests.support.peers.redis_server import Sentinel, redis_server, running
from tests.support.peers.response_stores import bounded, find, patient, put, store_at, until_found


@bounded
async def test_namespaces_do_not_see_each_other(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with (
            store_at(patient(RedisConfig(url=server.url, namespace="one"))) as one,
            store_at(patient(RedisConfig(url=server.url, namespace="two"))) as two,
        ):
            await put(one, Store(b"a", b"1"))
            assert await find(two, b"a") == [None]
            assert b"one:a" in server.command("KEYS", "*")


@bounded
async def test_user_and_password(tmp_path: Path) -> None:
    acl = ("--user", "cache", "on", ">geheim", "~*", "+@all", "--requirepass", "another")
    with redis_server(tmp_path, *acl) as server:
        good = RedisConfig(url=server.url, user="cache", password="geheim")
        async with store_at(good) as store:
            await until_found(store, b"a", b"1")
        async with store_at(RedisConfig(url=server.url, user="cache", password="no")) as store:
            assert await find(store, b"a") == [None]
            assert store.usage.failures == 1
        async with store_at(RedisConfig(url=server.url)) as store:
            assert await find(store, b"a") == [None]


@bounded
async def test_over_tcp_in_another_database(tmp_path: Path) -> None:
    port = free_port()
    with redis_server(tmp_path, "--port", str(port)):
        async with store_at(patient(RedisConfig(host="127.0.0.1", port=port, db=3))) as store:
            await put(store, Store(b"a", b"1"))
            assert await find(store, b"a") == [b"1"]
        async with store_at(patient(RedisConfig(url=f"redis://127.0.0.1:{port}/3"))) as store:
            assert await find(store, b"a") == [b"1"]
        async with store_at(RedisConfig(url=f"redis://127.0.0.1:{port}")) as store:
            assert await find(store, b"a") == [None]


@pytest.mark.slow
@bounded
async def test_a_cluster(tmp_path: Path) -> None:
    port = free_port()
    # Its nodes talk among themselves at 10000 more, which the system shall not give to others.
    while port > 22_000:
        port = free_port()
    options = ("--port", str(port), "--cluster-enabled", "yes", "--bind", "127.0.0.1")
    with redis_server(tmp_path, *options) as server:
        # By number and in parts: Redis 6 knows no ranges, and a line may have 64 KiB.
        for first in range(0, 16384, 4096):
            server.command("CLUSTER", "ADDSLOTS", *map(str, range(first, first + 4096)))
        while b"cluster_state:ok" not in server.command("CLUSTER", "INFO"):
            await asyncio.sleep(0.02)
        async with store_at(patient(RedisConfig(url=f"redis+cluster://127.0.0.1:{port}"))) as store:
            await until_found(store, b"a", b"1")
            await put(store, *(Store(b"%d" % n, b"v") for n in range(20)))
            assert await find(store, *(b"%d" % n for n in range(20))) == [b"v"] * 20


@pytest.mark.slow
@bounded
async def test_a_master_by_its_sentinel(tmp_path: Path) -> None:
    port, sentinel_port = free_port(), free_port()
    watcher_path = tmp_path / "watcher"
    watcher_path.mkdir()
    with (
        redis_server(tmp_path, "--port", str(port)),
        running(Sentinel(watcher_path, sentinel_port, port)),
    ):
        url = f"redis+sentinel://127.0.0.1:{sentinel_port}/mymaster"
        async with store_at(RedisConfig(url=url)) as store:
            await until_found(store, b"a", b"1")
