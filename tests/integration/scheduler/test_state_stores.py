"""What every store of state must do: a directory, and a real Redis behind a cache."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from nereid.rpc import Handlers
from nereid_cache.cache_config import LocalConfig, RedisConfig
from nereid_cache.service import CacheService, make_state, make_store
from nereid_scheduler.control.state.cache_store import CacheStore
from nereid_scheduler.control.state.file_store import FileStore
from nereid_scheduler.control.state.files import StateFiles
from nereid_scheduler.control.state.format.records import (
    Record,
    encode_record,
    head_of,
    record_name,
)
from nereid_scheduler.control.state.recorder import StateRecorder
from nereid_scheduler.control.state.store import StateConflict, StateError, StateStore
from tests.support.peers.redis_server import RedisServer, redis_server
from tests.support.rpc.local_channel import LocalChannel

NAME = record_name("model/m")
OLD = encode_record(Record("model/m", {"number": 1}))
NEW = encode_record(Record("model/m", {"number": 2}))
SECRET = b"secret"
# Of the namespace and the mesh in these tests.
KEY = "shared:nereid-state:{mesh}"
HUGE = "\"return redis.call('HSET',KEYS[1],ARGV[1],string.rep('x',17825792))\""
COPY = "\"return redis.call('HSET',KEYS[1],ARGV[2],redis.call('HGET',KEYS[1],ARGV[1]))\""
STRANGERS = (
    '"'
    + encode_record(Record("model/n", {"number": 1}), b"another")
    .decode()
    .translate({ord("\n"): "\\n", ord('"'): '\\"'})
    + '"',
)


@asynccontextmanager
async def cache_at(url: str) -> AsyncIterator[LocalChannel]:
    config = RedisConfig(url=url, namespace="shared")
    service = CacheService(make_store(config), state=make_state(config))
    channel = LocalChannel(service.handlers())
    try:
        yield channel
    finally:
        await channel.close()
        await service.close()


@pytest.fixture(params=["files", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StateStore]:
    async with AsyncExitStack() as stack:
        if request.param == "files":
            store: StateStore = FileStore(StateFiles(str(tmp_path / "state")))
        else:
            server = stack.enter_context(redis_server(tmp_path))
            store = CacheStore(await stack.enter_async_context(cache_at(server.url)), "mesh.1")
        yield store
        await store.close()


async def test_the_contract_of_stores(store: StateStore) -> None:
    assert await store.read_all() == {}
    assert await store.read(NAME) == b""
    assert await store.read_files(NAME, ["aa"]) == {}
    await store.write(NAME, OLD, b"", {"aa": b"\0a", "bb": b""})
    assert await store.read_all() == {NAME: OLD}
    for expected in (b"", head_of(NEW)):
        with pytest.raises(StateConflict):
            await store.write(NAME, NEW, expected, {})
        with pytest.raises(StateConflict):
            await store.delete(NAME, expected)
    assert await store.read_files(NAME, ["aa", "bb", "cc"]) == {"aa": b"\0a", "bb": b""}
    await store.write(NAME, NEW, head_of(OLD), {"cc": b"c"})
    assert await store.read(NAME) == NEW
    assert await store.read_files(NAME, ["aa", "bb", "cc"]) == {"cc": b"c"}
    assert NAME in await store.set_aside(NAME)
    assert await store.read_all() == {}
    await store.write(NAME, OLD, b"", {"aa": b"a"})
    await store.delete(NAME, head_of(OLD))
    assert await store.read_all() == {}
    assert await store.read_files(NAME, ["aa"]) == {}


async def test_a_recorder_on_each_store(store: StateStore) -> None:
    recorder = StateRecorder(store, b"secret")
    assert await recorder.read() == {}
    recorder.put("model/m", {"n": 1}, {"aa": b"file"})
    recorder.put("settings/log", {"n": 2}, over_others=True)
    for key in ("model/m", "settings/log"):
        await recorder.written(key)
    following = StateRecorder(store, b"secret")
    assert await following.read() == {"model/m": {"n": 1}, "settings/log": {"n": 2}}
    assert await following.read_files("model/m", ["aa"]) == {"aa": b"file"}
    following.delete("model/m")
    await following.written("model/m")
    # Whoever has another secret reads none of it, and says so.
    stranger = StateRecorder(store, b"another")
    assert await stranger.read() == {}
    assert (recorder.failures, following.failures, stranger.failures) == (0, 0, 1)


async def test_meshes_of_one_redis_know_nothing_of_each_other(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with cache_at(server.url) as channel:
            one, other = CacheStore(channel, "one"), CacheStore(channel, "other")
            await one.write(NAME, OLD, b"", {"aa": b"a"})
            assert await other.read_all() == {}
            assert await other.read_files(NAME, ["aa"]) == {}


OTHERS_WRITES = {
    "a name of another encoding": ("HSET", KEY, r'"\xff\xfe"', "x"),
    "a name of another form": ("HSET", KEY, "x" * 32, "x"),
    "a record that was cut": ("HSET", KEY, record_name("model/n"), "nereid-state"),
    "a record of 17 MiB": ("EVAL", HUGE, "1", KEY, record_name("model/n")),
    "another mesh's record": ("HSET", KEY, record_name("model/n"), *STRANGERS),
    "our record under another name": ("EVAL", COPY, "1", KEY, NAME, record_name("model/n")),
}


@pytest.mark.parametrize("write", OTHERS_WRITES)
async def test_what_others_write_beside_the_records_is_ignored(tmp_path: Path, write: str) -> None:
    with redis_server(tmp_path) as server:
        async with cache_at(server.url) as channel:
            recorder = StateRecorder(CacheStore(channel, "mesh"), SECRET)
            await recorder.read()
            recorder.put("model/m", {"n": 1})
            await recorder.written("model/m")
            assert server.command(*OTHERS_WRITES[write]).startswith(b":")
            following = StateRecorder(CacheStore(channel, "mesh"), SECRET)
            assert await following.read() == {"model/m": {"n": 1}}
            # What was read once is not read again.
            failures = following.failures
            assert await following.read() == {"model/m": {"n": 1}}
            assert following.failures == failures
            await following.close()
            await recorder.close()


@pytest.mark.parametrize("key", [KEY, f"{KEY}:{NAME}"], ids=["records", "files"])
async def test_a_key_of_another_type_is_set_aside(tmp_path: Path, key: str) -> None:
    with redis_server(tmp_path) as server:
        async with cache_at(server.url) as channel:
            store = CacheStore(channel, "mesh")
            assert server.command("SET", key, "ours").startswith(b"+OK")
            assert await store.read_all() == {}
            assert await store.read_files(NAME, ["aa"]) == {}
            assert server.command("GET", f"{key}.damaged").endswith(b"ours\r\n")
            await store.write(NAME, OLD, b"", {"aa": b"a"})
            server.command("DEL", key)
            server.command("SET", key, "ours")
            # While it runs, too: by a write, a read, or a read of files.
            if key == KEY:
                await store.write(NAME, NEW, b"", {})
                assert await store.read(NAME) == NEW
            else:
                assert await store.read_files(NAME, ["aa"]) == {}


async def test_a_cache_in_memory_keeps_no_state() -> None:
    service = CacheService(make_store(LocalConfig()), state=make_state(LocalConfig()))
    store = CacheStore(LocalChannel(service.handlers()), "mesh")
    with pytest.raises(StateError, match="not in Redis"):
        await store.read_all()
    await service.close()


async def test_a_cache_of_before_keeps_no_state() -> None:
    store = CacheStore(LocalChannel(Handlers()), "mesh")
    with pytest.raises(StateError, match="does not keep the state"):
        await store.read_all()


async def test_a_redis_that_is_full_away_or_back(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with cache_at(server.url) as channel:
            store = CacheStore(channel, "mesh")
            await store.write(NAME, OLD, b"", {"aa": b"a"})
            fill(server)
            with pytest.raises(StateError, match="OOM"):
                await store.write(NAME, NEW, head_of(OLD), {"bb": b"b"})
            # Nothing of it was done.
            assert await store.read(NAME) == OLD
            assert await store.read_files(NAME, ["aa"]) == {"aa": b"a"}
            await store.delete(NAME, head_of(OLD))
            server.kill()
            with pytest.raises(StateError, match="Redis: ConnectionError"):
                await store.read_all()
            server.start()
            assert await store.read_all() == {}
            await store.write(NAME, OLD, b"", {})


async def test_a_damaged_record_in_a_full_redis_keeps_no_scheduler_from_starting(
    tmp_path: Path,
) -> None:
    with redis_server(tmp_path) as server:
        async with cache_at(server.url) as channel:
            recorder = StateRecorder(CacheStore(channel, "mesh"), SECRET)
            await recorder.read()
            recorder.put("model/m", {"n": 1})
            await recorder.written("model/m")
            await recorder.close()
            assert server.command("HSET", KEY, record_name("model/n"), "x").startswith(b":1")
            fill(server)
            following = StateRecorder(CacheStore(channel, "mesh"), SECRET)
            assert await following.read() == {"model/m": {"n": 1}}
            await following.close()


def fill(server: RedisServer) -> None:
    assert server.command("CONFIG", "SET", "maxmemory", "1").startswith(b"+OK")


async def test_a_redis_that_hangs_is_an_error_in_time(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with cache_at(server.url) as channel:
            store = CacheStore(channel, "mesh")
            await store.write(NAME, OLD, b"", {})
            server.pause()
            try:
                with pytest.raises(StateError, match="TimeoutError"):
                    await asyncio.wait_for(store.read(NAME), 30)
            finally:
                server.resume()
