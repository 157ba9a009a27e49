"""Sentinels and clusters over TLS: caches with good credentials get hits, others misses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nereid.core.wire.cache_messages import CacheStore
from nereid_cache.cache_config import RedisConfig, parse_cache_config
from tests.support.mesh.mesh import free_port
from tests.support.peers.certificates import Authority
from tests.support.peers.redis_server import RedisServer, Sentinel, running, tls_binary
from tests.support.peers.response_stores import (
    look_up,
    open_store_at,
    store_until_found,
    store_values,
    with_long_timeouts,
)
from tests.support.waiting import until

pytestmark = pytest.mark.slow

# A sentinel takes seconds to detect a failure and elect a master.
LIMIT_S = 40.0
SECRET = "geheim"
SENTINELS_SECRET = "still"
OWN = f",password={SECRET}" + ",cacert={root},cert={cert},key={key}"


@dataclass(frozen=True)
class Site:
    """An address, and the certificates of a client."""

    where: str
    root: str
    stranger: str
    cert: str
    key: str

    def config(self, text: str) -> RedisConfig:
        config = parse_cache_config([text.format(**vars(self))], {})
        assert isinstance(config, RedisConfig)
        return with_long_timeouts(config)


@pytest.fixture(scope="module")
def binary() -> str:
    binary = tls_binary()
    if binary is None:
        pytest.skip("no redis-server of this machine was built with TLS")
    return binary


class Certified:
    """Certificates of one authority, for servers on this machine and for a cache."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder / "own")
        self._root = authority.root
        self._stranger = Authority(folder / "stranger").root
        # By IP address: sentinels and clusters name their servers so.
        self._server = authority.identity("127.0.0.1")
        self._cache = authority.identity("nereid.test", files="cache")

    def options(self, port: int) -> list[str]:
        """For a server that uses TLS only, also between servers."""
        return [
            "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1",
            "--tls-replication", "yes", "--tls-auth-clients", "yes",
            "--tls-cert-file", self._server.cert, "--tls-key-file", self._server.key,
            "--tls-ca-cert-file", self._root,
        ]  # fmt: skip

    def site(self, where: str) -> Site:
        return Site(where, self._root, self._stranger, self._cache.cert, self._cache.key)


def secret_server(folder: Path, binary: str, *options: str) -> RedisServer:
    folder.mkdir()
    secret = ("--requirepass", SECRET, "--masterauth", SECRET)
    server = RedisServer(folder, *options, *secret, binary=binary)
    server.password = SECRET
    return server


@dataclass(frozen=True)
class Watched:
    """A master, its replica, and the sentinel that watches both."""

    site: Site
    master: RedisServer
    replica: RedisServer
    replica_port: int
    watcher: Sentinel

    def in_sync(self) -> bool:
        """Only a replica that the sentinel knows to be in sync can be promoted."""
        reply = self.watcher.command("SENTINEL", "REPLICAS", "mymaster")
        return b"master-link-status\r\n$2\r\nok" in reply

    def promoted(self) -> bool:
        reply = self.watcher.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")
        return str(self.replica_port).encode() in reply


@contextlib.contextmanager
def watched(folder: Path, binary: str) -> Iterator[Watched]:
    certified = Certified(folder)
    first, second, port = free_port(), free_port(), free_port()
    options = [*certified.options(second), "--replicaof", "127.0.0.1", str(first)]
    master = secret_server(folder / "master", binary, *certified.options(first))
    replica = secret_server(folder / "replica", binary, *options)
    (folder / "watcher").mkdir()
    settings = (
        f"auth-pass mymaster {SECRET}",
        "down-after-milliseconds mymaster 300",
        "failover-timeout mymaster 3000",
    )
    own = [*certified.options(port), "--requirepass", SENTINELS_SECRET]
    watcher = Sentinel(folder / "watcher", 0, first, *settings, options=own, binary=binary)
    watcher.password = SENTINELS_SECRET
    with running(master), running(replica), running(watcher):
        yield Watched(certified.site(f"127.0.0.1:{port}"), master, replica, second, watcher)


SENTINEL = "redis,url=rediss+sentinel://{where}/mymaster" + OWN
SENTINEL += f",sentinel_password={SENTINELS_SECRET}"


async def test_sentinels_over_tls_name_the_master_and_then_its_replacement(
    binary: str, tmp_path: Path
) -> None:
    with watched(tmp_path, binary) as it:
        await until(it.in_sync)
        async with open_store_at(it.site.config(SENTINEL)) as store, asyncio.timeout(LIMIT_S):
            await store_until_found(store, b"a", b"1")
            it.master.kill()
            await until(it.promoted)
            await store_until_found(store, b"b", b"2")
        # The former replica has it.
        assert b"nereid:62" in it.replica.command("KEYS", "*")


REFUSED = {
    "no TLS": {"rediss+": "redis+", ",cacert={root},cert={cert},key={key}": ""},
    "another CA": {"{root}": "{stranger}"},
    "no certificate": {",cert={cert},key={key}": ""},
    "another password": {f",password={SECRET}": ",password=falsch"},
}


def refused(text: str, why: str) -> str:
    for good, bad in REFUSED[why].items():
        assert good in text
        text = text.replace(good, bad)
    return text


async def test_sentinels_over_tls_refuse_bad_credentials(binary: str, tmp_path: Path) -> None:
    also = {SENTINEL.replace("sentinel_password=", "sentinel_password=no")}
    also.add(SENTINEL.replace(f",sentinel_password={SENTINELS_SECRET}", ""))
    with watched(tmp_path, binary) as it:
        for text in also | {refused(SENTINEL, why) for why in REFUSED}:
            assert await misses(it.site.config(text)), text
        # With TLS as an option instead of in the scheme.
        text = SENTINEL.replace("rediss+", "redis+") + ",tls_enabled=true"
        async with open_store_at(it.site.config(text)) as store, asyncio.timeout(LIMIT_S):
            await store_until_found(store, b"a", b"1")


async def misses(config: RedisConfig) -> bool:
    """Whether a lookup fails, as opposed to finding nothing."""
    # A TLS client and a server without TLS may wait for each other.
    async with open_store_at(replace(config, socket_timeout=300, connect_timeout=300)) as store:
        return await look_up(store, b"a") == [None] and store.usage.failures == 1


CLUSTER = "redis,url=rediss+cluster://{where}" + OWN


@contextlib.contextmanager
def cluster(folder: Path, binary: str) -> Iterator[tuple[Site, list[RedisServer]]]:
    """Two masters with half of the slots each."""
    certified = Certified(folder)
    ports = [cluster_port(), cluster_port()]
    servers = []
    with contextlib.ExitStack() as stack:
        for port in ports:
            options = ("--cluster-enabled", "yes", "--tls-cluster", "yes")
            server = secret_server(folder / str(port), binary, *certified.options(port), *options)
            servers.append(stack.enter_context(running(server)))
        # By number and in parts: Redis 6 knows no ranges, and a line may have 64 KiB.
        for first in range(0, 16384, 4096):
            slots = map(str, range(first, first + 4096))
            servers[first // 8192].command("CLUSTER", "ADDSLOTS", *slots)
        servers[0].command("CLUSTER", "MEET", "127.0.0.1", str(ports[1]))
        yield certified.site(f"127.0.0.1:{ports[0]}"), servers


def cluster_port() -> int:
    """Nodes use port + 10000 among themselves, which must not be an ephemeral port."""
    while (port := free_port()) > 22_000:
        pass
    return port


async def test_a_cluster_over_tls_refuses_bad_credentials(binary: str, tmp_path: Path) -> None:
    with cluster(tmp_path, binary) as (site, servers):
        for server in servers:
            await until(lambda s=server: b"cluster_state:ok" in s.command("CLUSTER", "INFO"))
        for text in (CLUSTER, CLUSTER.replace("rediss+", "redis+") + ",tls_enabled=true"):
            keys = [b"%d" % number for number in range(50)]
            async with open_store_at(site.config(text)) as store, asyncio.timeout(LIMIT_S):
                await store_until_found(store, b"a", b"1")
                await store_values(store, *(CacheStore(key, key) for key in keys))
                assert await look_up(store, *keys) == keys
        # Each has some of the keys.
        assert all(b"nereid:" in server.command("KEYS", "*") for server in servers)
        for why in REFUSED:
            assert await misses(site.config(refused(CLUSTER, why))), why
