"""The cache's flags and environment variables; no other module of the cache reads these."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nereid.config.flags import Topic, address, flag, own_port
from nereid.config.recovery import RecoverySettings
from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.settings import MeshAccessSettings
from nereid.observability.logging import LogSettings
from nereid.observability.trace_config import TraceSettings
from nereid_cache.cache_config import checked_option, parse_cache_config

if TYPE_CHECKING:
    from nereid_cache.cache_config import CacheConfig


@dataclass(frozen=True, kw_only=True)
class CacheSettings(MeshAccessSettings, RecoverySettings, TraceSettings, LogSettings):
    """Cache: keeps responses by digest, in memory or in Redis."""

    TOPIC: ClassVar = Topic.CACHE
    MESH_ROLES: ClassVar = frozenset({Role.SCHEDULER})

    cache_listen: str = flag(
        "127.0.0.1:8004", "where schedulers find the cache, host:port or unix:/path", address
    )
    cache_config: tuple[str, ...] = flag(
        (),
        "the response cache: local,size=BYTES or redis,host=HOST, with more options after commas or"
        " in further flags: ttl=SECONDS for both; port, user, password, password_file, db, url,"
        " namespace, connect_timeout, socket_timeout, wait_timeout (ms), pool_size, tls_enabled,"
        " cert, key, cacert, cacert_dir, sni, sentinel_user, sentinel_password for redis",
        checked_option,
        repeated=True,
        secret=True,
    )

    metrics_port: int = flag(-1, "a port for the cache's own /metrics; -1: none", own_port)
    metrics_address: str = flag(
        "0.0.0.0", "the interface of the metrics port", hardened="127.0.0.1"
    )

    def errors(self) -> list[str]:
        """Return the errors in these settings, one line each."""
        try:
            self.store_config()
        except ValueError as error:
            return [f"--cache-config: {line}" for line in str(error).splitlines()]
        return self.mesh_errors([self.cache_listen])

    def store_config(self) -> CacheConfig:
        """Return the store that --cache-config describes; raise ValueError if the flag is wrong."""
        return parse_cache_config(self.cache_config, os.environ)
