"""Calls of response stores; every wait ends in LIMIT_S."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from nereid.core.wire.cache_messages import CacheLookup, CacheStore, LookupResult
from nereid_cache.cache_config import RedisConfig
from nereid_cache.service import make_store
from nereid_cache.store import ResponseStore
from tests.support.waiting import until

LIMIT_S = 30.0
# For a machine that is busy with other things.
SLACK_S = 5.0


def time_limited(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def within_limit(*args: object, **kwargs: object) -> None:
        async with asyncio.timeout(LIMIT_S):
            await test(*args, **kwargs)

    return within_limit


def with_long_timeouts(config: RedisConfig) -> RedisConfig:
    """For tests that need the reply however slow the machine is."""
    return replace(config, connect_timeout=10_000, socket_timeout=10_000, wait_timeout=10_000)


@contextlib.asynccontextmanager
async def open_store_at(config: RedisConfig) -> AsyncIterator[ResponseStore]:
    store = make_store(config)
    try:
        yield store
    finally:
        await store.close()


async def look_up(store: ResponseStore, *keys: bytes) -> list[bytes | None]:
    """Look up these keys, and return the values in their order."""
    done: asyncio.Future[list[LookupResult]] = asyncio.get_running_loop().create_future()
    lookups = [CacheLookup(number, key) for number, key in enumerate(keys)]
    store.exchange(lookups, [], done.set_result)
    # Not wait_for: on Python 3.11 it swallows a cancellation that comes together with the result,
    # and with it the time limit of a caller's loop.
    async with asyncio.timeout(LIMIT_S):
        found = await done
    assert sorted(each.id for each in found) == list(range(len(keys)))
    return [each.value for each in sorted(found)]


async def store_values(store: ResponseStore, *stores: CacheStore) -> None:
    store.exchange([], stores, expect_no_lookups)
    # Waits for it: exchanges are in order.
    await look_up(store, b"nothing")


def expect_no_lookups(findings: list[LookupResult]) -> None:
    raise AssertionError(findings)


async def store_until_found(store: ResponseStore, key: bytes, value: bytes) -> None:
    async def is_found() -> bool:
        store.exchange([], [CacheStore(key, value)], lambda _: None)
        return await look_up(store, key) == [value]

    await until(is_found)
