"""Redis by TLS: who is trusted, by which name, and who is let in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trustme

from nereid.core.cache_messages import Store
from nereid.services.cache.cache_config import RedisConfig, parse_cache_config
from tests.support.mesh.mesh import free_port
from tests.support.peers.redis_server import redis_server, tls_binary
from tests.support.peers.response_stores import bounded, find, patient, put, store_at


@dataclass(frozen=True)
class Site:
    """A Redis that asks for a password, and in mutual for a certificate as well."""

    port: int
    # The one that signed all certificates, and one that signed none of them.
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
    return patient(config)


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
@bounded
async def test_who_is_trusted_and_known_gets_responses(site: Site, text: str) -> None:
    async with store_at(config_of(site, text)) as store:
        await put(store, Store(text.encode(), b"1"))
        assert await find(store, text.encode()) == [b"1"]
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
@bounded
async def test_whoever_is_not_has_misses(site: Site, text: str) -> None:
    # TLS and a server that speaks none may wait for each other.
    config = replace(config_of(site, text), socket_timeout=300, connect_timeout=300)
    async with store_at(config) as store:
        assert await find(store, b"a") == [None]
        assert store.usage.failures == 1


@bounded
async def test_without_a_certificate_of_its_own(site: Site) -> None:
    text = "redis,host=localhost,port={port},tls_enabled=true,password=geheim,cacert={ca}"
    async with store_at(config_of(site, text)) as store:
        await find(store, b"a")
        assert store.usage.failures == site.mutual
