"""Redis over TLS: certificates, names and passwords."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trustme

from nereid.core.wire.cache_messages import CacheStore
from nereid_cache.cache_config import RedisConfig, parse_cache_config
from tests.support.mesh.mesh import free_port
from tests.support.peers.redis_server import redis_server, tls_binary
from tests.support.peers.response_stores import (
    look_up,
    open_store_at,
    store_values,
    time_limited,
    with_long_timeouts,
)


@dataclass(frozen=True)
class Site:
    """A Redis that requires a password and, if mutual, a client certificate."""

    port: int
    # The authority that signed all certificates, and another one.
    ca: Path
    stranger: Path
    cert: Path
    key: Path
    mutual: bool


@pytest.fixture(scope="module", params=[False, True], ids=["one-sided", "mutual"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    binary = tls_binary()
    if binary is None:
        pytest.skip("no redis-server of this machine was built with TLS")
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    ca, stranger, cert, key = (directory / name for name in ("ca", "stranger", "cert", "key"))
    it = Site(free_port(), ca, stranger, cert, key, mutual=request.param)
    authority.cert_pem.write_to_path(str(it.ca))
    trustme.CA().cert_pem.write_to_path(str(it.stranger))
    client = authority.issue_cert("nereid.test")
    client.private_key_pem.write_to_path(str(it.key))
    client.cert_chain_pems[0].write_to_path(str(it.cert))
    server = authority.issue_cert("localhost", "redis.test")
    server.private_key_and_cert_chain_pem.write_to_path(str(directory / "server"))
    options = (
        "--tls-port", str(it.port), "--bind", "127.0.0.1", "--requirepass", "geheim",
        "--tls-cert-file", str(directory / "server"), "--tls-key-file", str(directory / "server"),
        "--tls-ca-cert-file", str(it.ca),
        "--tls-auth-clients", "yes" if it.mutual else "no",
    )  # fmt: skip
    with redis_server(directory, *options, binary=binary):
        yield it


OWN = ",password=geheim,cacert={ca},cert={cert},key={key}"


def config_of(site: Site, text: str) -> RedisConfig:
    config = parse_cache_config([text.format(**vars(site))], {})
    assert isinstance(config, RedisConfig)
    return with_long_timeouts(config)


@pytest.mark.parametrize(
    "text",
    [
        "redis,host=localhost,port={port},tls_enabled=true" + OWN,
        "redis,url=rediss://localhost:{port}" + OWN,
        "redis,url=rediss://:geheim@localhost:{port},cacert={ca},tls_cert={cert},tls_key={key}",
        "redis,host=127.0.0.1,port={port},tls_enabled=true,sni=redis.test" + OWN,
        "redis,url=rediss://127.0.0.1:{port},sni=redis.test" + OWN,
    ],
    ids=["host", "url", "password in the url", "name", "name and url"],
)
@time_limited
async def test_good_credentials_get_hits(site: Site, text: str) -> None:
    async with open_store_at(config_of(site, text)) as store:
        await store_values(store, CacheStore(text.encode(), b"1"))
        assert await look_up(store, text.encode()) == [b"1"]
        assert store.usage.failures == 0


@pytest.mark.parametrize(
    "text",
    [
        "redis,host=localhost,port={port}" + ",password=geheim",
        "redis,host=localhost,port={port},tls_enabled=true,password=geheim",
        "redis,host=localhost,port={port},tls_enabled=true" + OWN.replace("{ca}", "{stranger}"),
        "redis,host=127.0.0.1,port={port},tls_enabled=true" + OWN,
        "redis,host=localhost,port={port},tls_enabled=true,sni=other.test" + OWN,
        "redis,url=rediss://localhost:{port}" + OWN.replace("geheim", "falsch"),
    ],
    ids=["no TLS", "no CA", "another CA", "another host", "another name", "another password"],
)
@time_limited
async def test_bad_credentials_get_misses(site: Site, text: str) -> None:
    # A TLS client and a server without TLS may wait for each other.
    config = replace(config_of(site, text), socket_timeout=300, connect_timeout=300)
    async with open_store_at(config) as store:
        assert await look_up(store, b"a") == [None]
        assert store.usage.failures == 1


@time_limited
async def test_without_a_certificate_of_its_own(site: Site) -> None:
    text = "redis,host=localhost,port={port},tls_enabled=true,password=geheim,cacert={ca}"
    async with open_store_at(config_of(site, text)) as store:
        await look_up(store, b"a")
        assert store.usage.failures == site.mutual
