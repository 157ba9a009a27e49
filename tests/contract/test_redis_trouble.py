"""What Redis alone can suffer, and how it may be reached. Every test ends in LIMIT_S."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nereid.cache import CacheUsage, Finding, FromCache, Lookup, Store, ToCache
from nereid.rpc import Link, memory_links
from services.cache.config import RedisConfig
from services.cache.redis_client import make_client
from services.cache.redis_store import RedisOptions, RedisStore
from services.cache.service import CacheService, make_store
from services.cache.store import AnswerStore
from tests.contract.test_answer_store import LIMIT_S, find, put
from tests.e2e.mesh import free_port
from tests.redis_server import RedisServer, Sentinel, redis_server, running

OnFindings = Callable[[list[Finding]], None]
OnStored = Callable[[Sequence[bool]], None]

_CALLERS = 32
_TIMES_MS = 100
# A sentinel takes seconds to be sure and to choose.
_FAILOVER_S = 40.0
# An answer waits at most its time in line, then a pipeline's: a connection's and an answer's.
_LATEST_S = 3 * _TIMES_MS / 1000
# For a machine that is busy with other things.
_SLACK_S = 0.7


def bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def within_limit(*args: object, **kwargs: object) -> None:
        async with asyncio.timeout(LIMIT_S):
            await test(*args, **kwargs)

    return within_limit


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

    async def come(self, store: AnswerStore) -> None:
        async with asyncio.TaskGroup() as callers:
            for caller in range(_CALLERS):
                callers.create_task(self._ask(store, caller))

    async def _ask(self, store: AnswerStore, caller: int) -> None:
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
async def crowd_at(store: AnswerStore) -> AsyncIterator[Crowd]:
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
    assert crowd.latest_s < _LATEST_S + _SLACK_S


@contextlib.asynccontextmanager
async def store_at(config: RedisConfig) -> AsyncIterator[AnswerStore]:
    store = make_store(config)
    try:
        yield store
    finally:
        await store.close()


async def until_found(store: AnswerStore, key: bytes, value: bytes) -> None:
    while await find(store, key) != [value]:
        store.exchange([], [Store(key, value)], lambda _: None)
        await asyncio.sleep(0.005)


@bounded
async def test_killed_it_misses_and_comes_back(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with store_at(RedisConfig(url=server.url)) as store:
            await put(store, Store(b"a", b"1"))
            server.kill()
            assert await find(store, b"a") == [None]
            assert store.usage.failures >= 1
            Path(server.path).unlink(missing_ok=True)
            server.start()
            await until_found(store, b"a", b"2")


@bounded
async def test_paused_it_misses_after_the_socket_timeout(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with store_at(RedisConfig(url=server.url, socket_timeout=50)) as store:
            await put(store, Store(b"a", b"1"))
            server.pause()
            assert await find(store, b"a", b"b") == [None, None]
            server.resume()
            await until_found(store, b"a", b"1")
            assert store.usage.failures >= 2


@bounded
async def test_full_it_refuses_and_still_answers(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--maxmemory-policy", "noeviction") as server:
        async with store_at(RedisConfig(url=server.url)) as store:
            await put(store, Store(b"a", b"1"))
            server.command("CONFIG", "SET", "maxmemory", "1")
            await put(store, Store(b"b", b"2"))
            assert await find(store, b"a", b"b") == [b"1", None]
            assert store.usage.failures == 1


@bounded
async def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cache.redis_store._MOST_WAITING_LOOKUPS", 3)
    monkeypatch.setattr("services.cache.redis_store._MOST_WAITING_BYTES", 10)
    with redis_server(tmp_path) as server:
        async with store_at(RedisConfig(url=server.url)) as store:
            found: list[list[Finding]] = []
            store.exchange([Lookup(1, b"a"), Lookup(2, b"b")], [], found.append)
            store.exchange([Lookup(3, b"a"), Lookup(4, b"b")], [], found.append)
            assert found == [[Finding(3, None), Finding(4, None)]]
            store.exchange([], [Store(b"a", b"x" * 11)], found.append)
            assert store.usage.failures == 3
            assert await find(store, b"a") == [None]


@bounded
async def test_what_waited_too_long_is_a_miss(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        client = make_client(RedisConfig(url=server.url))
        store = RedisStore(client, RedisOptions(wait_timeout_s=-1.0))
        assert await find(store, b"a") == [None]
        assert store.usage.failures == 1
        await store.close()


@bounded
async def test_namespaces_do_not_see_each_other(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with (
            store_at(RedisConfig(url=server.url, namespace="one")) as one,
            store_at(RedisConfig(url=server.url, namespace="two")) as two,
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
        async with store_at(RedisConfig(host="127.0.0.1", port=port, db=3)) as store:
            await put(store, Store(b"a", b"1"))
            assert await find(store, b"a") == [b"1"]
        async with store_at(RedisConfig(url=f"redis://127.0.0.1:{port}/3")) as store:
            assert await find(store, b"a") == [b"1"]
        async with store_at(RedisConfig(url=f"redis://127.0.0.1:{port}")) as store:
            assert await find(store, b"a") == [None]


@pytest.mark.slow
@bounded
async def test_a_cluster(tmp_path: Path) -> None:
    port = free_port()
    # Its nodes talk among themselves at 10000 more.
    while port > 55535:
        port = free_port()
    options = ("--port", str(port), "--cluster-enabled", "yes", "--bind", "127.0.0.1")
    with redis_server(tmp_path, *options) as server:
        # By number and in parts: Redis 6 knows no ranges, and a line may have 64 KiB.
        for first in range(0, 16384, 4096):
            server.command("CLUSTER", "ADDSLOTS", *map(str, range(first, first + 4096)))
        while b"cluster_state:ok" not in server.command("CLUSTER", "INFO"):
            await asyncio.sleep(0.02)
        async with store_at(RedisConfig(url=f"redis+cluster://127.0.0.1:{port}")) as store:
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
                assert store.usage.failures == 0
                master.kill()
                await crowd.until_misses()
                # Nobody else holds what is found from here on.
                await crowd.until_hits()
                told = watcher.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")
            assert str(second).encode() in told


class ThroughService:
    """An AnswerStore as a scheduler sees it: a link, with the cache service behind."""

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
        async with store_at(impatient(server)) as store, crowd_at(store) as crowd:
            for _ in range(5):
                misses = crowd.misses
                server.command("FLUSHALL")
                while crowd.misses == misses:
                    await asyncio.sleep(0.005)
                await crowd.until_hits()
            assert store.usage.failures == 0


@contextlib.asynccontextmanager
async def dripping(server: RedisServer, path: Path, pause_s: float) -> AsyncIterator[asyncio.Event]:
    """A way to the server; once the event is set, answers come line by line, each after a pause."""
    slow = asyncio.Event()
    ways: set[asyncio.Task[None]] = set()

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
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

    async def open_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        way = asyncio.current_task()
        assert way is not None
        ways.add(way)
        there, back = await asyncio.open_unix_connection(server.path)
        both = [
            asyncio.create_task(pass_on(reader, back)),
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

    listening = await asyncio.start_unix_server(open_way, path)
    try:
        yield slow
    finally:
        listening.close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


@pytest.mark.slow
@bounded
async def test_answers_that_drip_are_late_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "dripping.sock"
    with redis_server(tmp_path) as server:
        config = RedisConfig(
            url=f"unix://{path}", connect_timeout=_TIMES_MS, socket_timeout=_TIMES_MS
        )
        async with dripping(server, path, 0.06) as slow, store_at(config) as store:
            await put(store, Store(b"a", b"1"))
            slow.set()
            asked_s = time.monotonic()
            # Each answer is in time for the socket, and the last one after three seconds.
            assert await find(store, *[b"nothing"] * 50) == [None] * 50
            assert time.monotonic() - asked_s < 0.2 + _SLACK_S
            assert store.usage.failures == 50
            slow.clear()
            await until_found(store, b"a", b"1")


@bounded
async def test_who_waits_is_told_in_time_while_redis_holds_the_one_before(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        # For ever, as far as the socket is concerned.
        async with store_at(
            RedisConfig(url=server.url, socket_timeout=0, wait_timeout=50)
        ) as store:
            await put(store, Store(b"a", b"1"))
            server.pause()
            held = asyncio.create_task(find(store, b"a"))
            await asyncio.sleep(0.01)
            asked_s = time.monotonic()
            assert await asyncio.gather(*(find(store, b"a") for _ in range(5))) == [[None]] * 5
            assert time.monotonic() - asked_s < 0.05 + _SLACK_S
            assert not held.done()
            server.resume()
            assert await held == [b"1"]
