"""Clients of the whole mesh while the Redis behind its cache is paused, killed, full and flushed.

Redis may take a minute for what it is asked, the cache a fifth of a second: a client that waited
for Redis instead of for the cache's limit would be seen.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from tests.support.mesh.mesh import START_S, Mesh, running, until
from tests.support.models.e2e_models import make_repository
from tests.support.peers.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.slow

_CLIENTS = 32
_KEYS = 48
_REDIS_MS = 60_000
_CACHE_MS = 200
# The cache's limit, the model's microseconds, and a machine that is busy with other things.
_LATEST_S = _CACHE_MS / 1000 + 20


class Crowd:
    """Clients that ask without pause, and what they have seen. All share the few keys there are."""

    def __init__(self, mesh: Mesh) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(mesh.grpc)
        self._ending = threading.Event()
        # Each client writes its own place alone.
        self._responded = [0] * _CLIENTS
        self._latest_s = [0.0] * _CLIENTS
        self._wrong: list[str] = []

    @property
    def latest_s(self) -> float:
        return max(self._latest_s)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Ends with the block; fails on whatever is wrong by then."""
        with self._client, ThreadPoolExecutor(_CLIENTS) as pool:
            coming = [pool.submit(self._come, client) for client in range(_CLIENTS)]
            try:
                yield
            finally:
                self._ending.set()
        for each in coming:
            each.result()
        assert not self._wrong

    def responded_more(self, each: int) -> None:
        """Until every client has had so many further responses."""
        enough = [responded + each for responded in self._responded]

        def responded() -> bool:
            assert not self._wrong
            return all(map(int.__ge__, self._responded, enough))

        until(responded, "every client's answers")

    def _come(self, client: int) -> None:
        turn = client * 7
        while not self._ending.is_set() and not self._wrong:
            turn += 1
            asked_s = time.monotonic()
            try:
                self._ask(turn % _KEYS)
            except Exception as error:
                self._wrong.append(repr(error))
            took_s = time.monotonic() - asked_s
            self._latest_s[client] = max(self._latest_s[client], took_s)
            self._responded[client] += 1

    def _ask(self, key: int) -> None:
        array = np.full((1, 8), key, np.float32)
        tensor = tritonclient.grpc.InferInput("INPUT0", [1, 8], "FP32")
        tensor.set_data_from_numpy(array)
        result = self._client.infer("doubler", [tensor], client_timeout=START_S)
        response = result.as_numpy("OUTPUT0")
        assert (response == 2 * array).all(), f"{response} for {key}"


def executions(mesh: Mesh) -> int:
    return mesh.counts("doubler")["execution_count"]


def await_hits(mesh: Mesh, crowd: Crowd) -> None:
    """Until the cache alone responds: no execution between two looks."""

    def cached() -> bool:
        before = executions(mesh)
        crowd.responded_more(2)
        return executions(mesh) == before

    until(cached, "responses without executions")


def pause(redis: RedisServer) -> Callable[[], None]:
    redis.pause()
    return redis.resume


def kill(redis: RedisServer) -> Callable[[], None]:
    redis.kill()
    Path(redis.path).unlink(missing_ok=True)
    return redis.start


def fill(redis: RedisServer) -> Callable[[], None]:
    assert redis.command("CONFIG", "SET", "maxmemory", "1") == b"+OK\r\n"
    # What it has already it would give out yet.
    assert redis.command("FLUSHALL") == b"+OK\r\n"
    return lambda: _unlimit(redis)


def _unlimit(redis: RedisServer) -> None:
    assert redis.command("CONFIG", "SET", "maxmemory", "0") == b"+OK\r\n"


def _misses(mesh: Mesh) -> int:
    return mesh.counts("doubler")["cache_miss"]


def test_clients_do_not_notice_what_redis_suffers(mesh_at_redis: tuple[Mesh, RedisServer]) -> None:
    mesh, redis = mesh_at_redis
    crowd = Crowd(mesh)
    with crowd.at_work():
        await_hits(mesh, crowd)
        for trouble in (pause, kill, fill):
            before = _misses(mesh)
            undo = trouble(redis)
            crowd.responded_more(5)
            # Misses by the dozen, and they do not end while it lasts: nothing is found again. How
            # many there are by now depends on how many identical requests were in flight together.
            name = trouble.__name__
            until(lambda: _misses(mesh) - before >= _CLIENTS, f"misses after {name}")  # noqa: B023
            missed = _misses(mesh)
            crowd.responded_more(2)
            assert _misses(mesh) > missed, name
            undo()
            await_hits(mesh, crowd)
        before = _misses(mesh)
        assert redis.command("FLUSHALL") == b"+OK\r\n"
        crowd.responded_more(_KEYS)
        assert _misses(mesh) - before >= _KEYS
        await_hits(mesh, crowd)
    assert crowd.latest_s < _LATEST_S
    assert mesh.counts("doubler")["fail"] == 0


@pytest.fixture(params=["scheduler", pytest.param("none", marks=pytest.mark.nightly)])
def mesh_at_redis(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Mesh, RedisServer]]:
    models = tmp_path / "models"
    models.mkdir()
    doubler = (make_repository(tmp_path / "all") / "doubler").rename(models / "doubler")
    with (doubler / "config.pbtxt").open("a") as config:
        config.write("response_cache { enable: true }\n")
    redis_directory = tmp_path / "redis"
    redis_directory.mkdir()
    with redis_server(redis_directory, "--maxmemory-policy", "noeviction") as redis:
        times = ",".join(f"{each}_timeout={_REDIS_MS}" for each in ("connect", "socket", "wait"))
        flags = (
            f"--join={request.param}",
            f"--cache-config=redis,url={redis.url},{times}",
            f"--cache-timeout-ms={_CACHE_MS}",
        )
        with running(models, tmp_path / "log", *flags) as mesh:
            yield mesh, redis
