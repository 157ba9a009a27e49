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
from tests.support.peers.redis_server import redis_server
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

    async def look_up(self, key: bytes) -> bytes | None:
        found: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        assert self.client.lookup(key, found.set_result)
        return await asyncio.wait_for(found, LIMIT_S)

    async def close(self) -> None:
        self.client.close()
        await self.service.close()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with redis_server(tmp_path) as server:
        yield server.url


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
