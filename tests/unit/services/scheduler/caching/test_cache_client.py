"""Lookups on a link that answers, is silent, goes down or is full."""

import asyncio

import pytest

from nereid.core.cache_messages import CacheUsage, Finding, Lookup, Store
from nereid.services.scheduler.caching.cache_client import CacheClient
from tests.support.scheduler.cache_site import FakeLink

LIMIT_S = 20


async def asked(client: CacheClient, key: bytes = b"k") -> asyncio.Future[bytes | None]:
    found: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    assert client.lookup(key, found.set_result)
    return found


async def test_findings_reach_who_asked_in_any_order() -> None:
    link = FakeLink()
    client = CacheClient(link, LIMIT_S)
    one, two = await asked(client, b"1"), await asked(client, b"2")
    first, second = link.lookups()
    assert (first.key, second.key) == (b"1", b"2")
    link.on_items([Finding(second.id, None), CacheUsage(entries=3), Finding(first.id, b"v")])
    assert (await one, await two) == (b"v", None)
    assert (client.lookups, client.hits, client.failures) == (2, 1, 0)
    assert client.usage_message().entries == 3
    client.close()


async def test_a_silent_cache_is_a_miss_in_time_and_its_late_finding_nothing() -> None:
    link = FakeLink()
    client = CacheClient(link, 0.02)
    started = asyncio.get_running_loop().time()
    found = await asked(client)
    assert await asyncio.wait_for(found, LIMIT_S) is None
    assert asyncio.get_running_loop().time() - started >= 0.018
    link.on_items([Finding(link.lookups()[0].id, b"late")])
    assert (client.hits, client.failures) == (0, 1)
    client.close()


@pytest.mark.slow
async def test_a_lookup_that_came_later_is_not_given_up_with_the_first() -> None:
    client = CacheClient(FakeLink(), 0.5)
    late = [await asked(client)]
    await asyncio.sleep(0.4)
    late.append(await asked(client))
    await asyncio.wait_for(late[0], LIMIT_S)
    assert not late[1].done()
    assert await asyncio.wait_for(late[1], LIMIT_S) is None
    client.close()


async def test_a_link_that_goes_down_is_a_miss_for_all() -> None:
    link = FakeLink()
    client = CacheClient(link, LIMIT_S)
    found = [await asked(client) for _ in range(3)]
    link.up = False
    link.on_down()
    assert [await each for each in found] == [None] * 3
    assert not client.lookup(b"k", lambda _: None)
    client.store(b"k", b"v")
    assert (client.failures, client.usage_message().failures) == (5, 5)
    assert not any(isinstance(each, Store) for each in link.sent)
    link.up = True
    again = await asked(client)
    client.close()
    assert await again is None


async def test_without_time_to_wait_nothing_is_asked() -> None:
    link = FakeLink()
    client = CacheClient(link, 0)
    assert not client.lookup(b"k", lambda _: None)
    assert link.sent == []


async def test_one_asker_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    link = FakeLink()
    client = CacheClient(link, LIMIT_S)

    def fail(value: bytes | None) -> None:
        raise RuntimeError(value)

    client.lookup(b"1", fail)
    found = await asked(client, b"2")
    link.on_items([Finding(each.id, b"v") for each in link.sent if isinstance(each, Lookup)])
    assert await found == b"v"
    assert "could not be handed over" in caplog.text
    client.close()


async def test_a_link_that_does_not_drain_takes_no_more_than_so_much() -> None:
    link = FakeLink()
    client = CacheClient(link, LIMIT_S)
    value = bytes(30 << 20)
    for _ in range(3):
        client.store(b"k", value)
        link.pending = len(link.sent)
    assert (len(link.sent), client.failures) == (2, 1)
    link.pending = 0
    client.store(b"k", value)
    assert len(link.sent) == 3
    client.close()
