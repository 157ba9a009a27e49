"""Lookups on a link that responds, is silent, goes down or is full."""

import asyncio
import threading

import pytest

from nereid.core.wire.cache_messages import CacheLookup, CacheStore, CacheUsage, LookupResult
from nereid_scheduler.versions.caching.cache_client import CacheClient
from tests.support.scheduler.cache_site import SECRETS, FakeLink
from tests.support.waiting import until

LIMIT_S = 20


def client_of(link: FakeLink, timeout_s: float) -> CacheClient:
    """Of a cache in this process: values have no tags."""
    return CacheClient(link, SECRETS, timeout_s, in_this_process=True)


async def look_up(client: CacheClient, key: bytes = b"k") -> asyncio.Future[bytes | None]:
    found: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    assert client.lookup(key, found.set_result)
    return found


async def test_results_reach_their_lookups_in_any_order() -> None:
    link = FakeLink()
    client = client_of(link, LIMIT_S)
    one, two = await look_up(client, b"1"), await look_up(client, b"2")
    first, second = link.lookups()
    assert (first.key, second.key) == (b"1", b"2")
    link.on_items(
        [LookupResult(second.id, None), CacheUsage(entries=3), LookupResult(first.id, b"v")]
    )
    assert (await one, await two) == (b"v", None)
    assert (client.lookups, client.hits, client.failures) == (2, 1, 0)
    assert client.usage_message().entries == 3
    client.close()


async def test_a_lookup_times_out_as_a_miss_and_a_later_result_is_ignored() -> None:
    link = FakeLink()
    client = client_of(link, 0.02)
    started = asyncio.get_running_loop().time()
    found = await look_up(client)
    assert await asyncio.wait_for(found, LIMIT_S) is None
    assert asyncio.get_running_loop().time() - started >= 0.018
    link.on_items([LookupResult(link.lookups()[0].id, b"late")])
    assert (client.hits, client.failures) == (0, 1)
    client.close()


async def test_a_cache_that_starts_again_is_counted_on() -> None:
    link = FakeLink()
    client = client_of(link, LIMIT_S)
    for lookups, stores in ((5, 2), (6, 2), (1, 0), (3, 1), (0, 0)):
        link.on_items([CacheUsage(entries=lookups, lookups=lookups, stores=stores)])
    message = client.usage_message()
    assert (message.lookups, message.stores, message.entries) == (9, 3, 0)
    client.close()


async def test_a_link_that_goes_down_is_a_miss_for_all() -> None:
    link = FakeLink()
    client = client_of(link, LIMIT_S)
    found = [await look_up(client) for _ in range(3)]
    link.up = False
    link.on_down()
    assert [await each for each in found] == [None] * 3
    assert not client.lookup(b"k", lambda _: None)
    client.store(b"k", b"v")
    assert (client.failures, client.usage_message().failures) == (5, 5)
    assert not any(isinstance(each, CacheStore) for each in link.sent)
    link.up = True
    again = await look_up(client)
    client.close()
    assert await again is None


async def test_without_a_timeout_nothing_is_looked_up() -> None:
    link = FakeLink()
    client = client_of(link, 0)
    assert not client.lookup(b"k", lambda _: None)
    assert link.sent == []


async def test_a_callback_that_raises_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    link = FakeLink()
    client = client_of(link, LIMIT_S)

    def fail(value: bytes | None) -> None:
        raise RuntimeError(value)

    client.lookup(b"1", fail)
    found = await look_up(client, b"2")
    link.on_items(
        [LookupResult(each.id, b"v") for each in link.sent if isinstance(each, CacheLookup)]
    )
    assert await found == b"v"
    assert "callback of a cache lookup failed" in caplog.text
    client.close()


async def test_unsent_bytes_are_bounded() -> None:
    link = FakeLink()
    client = client_of(link, LIMIT_S)
    value = bytes(30 << 20)
    for _ in range(3):
        client.store(b"k", value)
        link.pending = len(link.sent)
    assert (len(link.sent), client.failures) == (2, 1)
    link.pending = 0
    client.store(b"k", value)
    assert len(link.sent) == 3
    client.close()


async def test_only_values_that_this_mesh_stored_are_hits(caplog: pytest.LogCaptureFixture) -> None:
    link = FakeLink()
    client = CacheClient(link, SECRETS, LIMIT_S)
    client.store(b"k", b"v")
    (stored,) = link.stores()
    assert stored.value != b"v"
    found = await look_up(client)
    link.send_results(stored.value)
    assert await found == b"v"
    for forged in (b"v", b"", stored.value[:-1] + b"w", b"\0" * 17):
        found = await look_up(client)
        link.send_results(forged)
        assert await found is None
    found = await look_up(client, b"another key")
    link.send_results(stored.value)
    assert await found is None
    assert (client.hits, client.failures) == (1, 5)
    # Once per interval, however many there are.
    assert caplog.text.count("that this mesh did not store") == 1
    client.close()


async def test_large_values_are_tagged_and_checked_in_threads() -> None:
    link = FakeLink()
    client = CacheClient(link, SECRETS, LIMIT_S)
    large = b"v" * (1 << 20)
    client.store(b"k", large)
    assert link.stores() == []
    await until(link.stores)
    for value, expected in ((link.stores()[0].value, large), (b"w" + large, None)):
        found = await look_up(client)
        link.send_results(value)
        assert not found.done()
        assert await asyncio.wait_for(found, LIMIT_S) == expected
    assert (client.hits, client.failures) == (1, 1)
    client.close()


async def test_a_large_value_that_cannot_be_checked_any_more_is_a_miss() -> None:
    link = FakeLink()
    client = CacheClient(link, SECRETS, LIMIT_S)
    gate = threading.Event()
    busy = [client.threads.submit(gate.wait, LIMIT_S) for _ in range(2)]
    found = await look_up(client)
    link.send_results(bytes(1 << 20))
    client.close()
    assert await asyncio.wait_for(found, LIMIT_S) is None
    gate.set()
    assert all(each.result() for each in busy)


async def test_a_later_lookup_does_not_time_out_with_the_first() -> None:
    client = client_of(FakeLink(), 0.1)
    first = await look_up(client)
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    while loop.time() - started_s < 0.02:
        await asyncio.sleep(0)
    second = await look_up(client)
    await asyncio.wait_for(first, LIMIT_S)
    assert not second.done()
    assert await asyncio.wait_for(second, LIMIT_S) is None
    client.close()
