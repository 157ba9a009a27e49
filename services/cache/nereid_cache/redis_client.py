"""Creates redis-py's client for one server, sentinels, or a cluster, without a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

if TYPE_CHECKING:
    from nereid_cache.cache_config import RedisConfig

_DEFAULT_PORT = 6379
_SENTINEL_PORT = 26379


class _MasterClient(Redis):
    """Client that also closes the connections to sentinels; redis-py's client leaves them open."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        pool: Any = self.connection_pool
        for sentinel in pool.sentinel_manager.sentinels:
            await sentinel.aclose()


def make_client(config: RedisConfig) -> Any:
    """Return a client with the methods that the stores use, such as pipeline() and aclose()."""
    options = _options(config)
    if not config.url:
        client = Redis(host=config.host, port=config.port, db=config.db, **options)
        return _expecting_name(client, config.tls_sni)
    scheme, _, rest = config.url.partition("://")
    kind, _, variant = scheme.partition("+")
    if not variant:
        # The scheme of the URL alone decides whether TLS is used.
        options = {k: v for k, v in options.items() if not k.startswith("ssl")}
        if kind == "rediss":
            options |= {k: v for k, v in _tls(config).items() if k != "ssl"}
        if "db=" not in config.url and not urlsplit(config.url).path.strip("/"):
            options["db"] = config.db
        return _expecting_name(Redis.from_url(config.url, **options), config.tls_sni)
    if kind == "rediss":
        options |= _tls(config)
    authority, _, path = rest.partition("/")
    credentials, _, hosts = authority.rpartition("@")
    if credentials:
        user, _, password = credentials.partition(":")
        options |= {"username": unquote(user) or None, "password": unquote(password)}
    if variant == "cluster":
        options.pop("ssl_ca_path", None)  # unknown to redis-py's cluster, and never set
        nodes = [ClusterNode(*_address(host, _DEFAULT_PORT)) for host in hosts.split(",")]
        return RedisCluster(startup_nodes=nodes, require_full_coverage=False, **options)
    service, _, db = path.partition("/")
    # The sentinels have their own credentials.
    own_credentials = {
        "username": config.sentinel_user or None,
        "password": config.sentinel_password or None,
    }
    sentinel = Sentinel(  # type: ignore[no-untyped-call]  # redis has no types for it
        [_address(host, _SENTINEL_PORT) for host in hosts.split(",")],
        sentinel_kwargs=options | own_credentials,
        **options,
    )
    return sentinel.master_for(
        service, redis_class=_MasterClient, db=int(db) if db.isdigit() else config.db
    )


def _options(config: RedisConfig) -> dict[str, Any]:
    options: dict[str, Any] = {
        "username": config.user or None,
        "password": config.password or None,
        "socket_connect_timeout": config.connect_timeout / 1000 or None,
        "socket_timeout": config.socket_timeout / 1000 or None,
        # A failure counts as a miss. By the time a retry succeeds, nobody waits for it.
        "retry": Retry(NoBackoff(), 0),
    }
    return options | _tls(config) if config.tls_enabled else options


def _tls(config: RedisConfig) -> dict[str, Any]:
    return {
        "ssl": True,
        "ssl_certfile": config.tls_cert or None,
        "ssl_keyfile": config.tls_key or None,
        "ssl_ca_certs": config.tls_cacert or None,
        "ssl_ca_path": config.tls_cacert_dir or None,
        # redis-py's default for this option has changed between releases.
        "ssl_check_hostname": True,
    }


def _expecting_name(client: Redis, name: str) -> Redis:
    """Make the client expect this name in the server's certificate, if the name is not empty."""

    class NamedConnection(SSLConnection):
        def _connection_arguments(self) -> dict[str, Any]:
            return {**super()._connection_arguments(), "server_hostname": name}

    if name:
        client.connection_pool.connection_class = NamedConnection
    return client


def _address(text: str, default_port: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        return text.strip("[]"), default_port
    return host.strip("[]"), int(port)
