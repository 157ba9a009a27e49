"""The cache as a service: schedulers connect over links, and all links use one store."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from nereid.core.methods import EXCHANGE_PATH
from nereid.core.wire.cache_messages import (
    CacheLookup,
    CacheReplyCodec,
    CacheRequestCodec,
    CacheStore,
)
from nereid.mesh_auth.guard import guarded
from nereid.rpc import Handlers, Server, ServerOptions, accept_link
from nereid_cache.cache_config import LocalConfig
from nereid_cache.memory_store import MemoryStore
from nereid_cache.state_methods import state_handlers
from nereid_cache.tracing import ExchangeTrace

if TYPE_CHECKING:
    from nereid.core.wire.cache_messages import CacheReply, CacheRequest, CacheUsage, LookupResult
    from nereid.observability.tracing import Tracer
    from nereid.rpc import Call, Link
    from nereid_cache.cache_config import CacheConfig, RedisConfig
    from nereid_cache.redis_state import RedisState
    from nereid_cache.settings import CacheSettings
    from nereid_cache.store import OnFound, OnStored, ResponseStore

_log = logging.getLogger(__name__)

# Delay from the first change until the store's usage is sent over the links.
_USAGE_DELAY_S: Final = 0.25


def make_store(config: CacheConfig) -> ResponseStore:
    """Return the store that a configuration describes; call this inside the event loop."""
    if isinstance(config, LocalConfig):
        return MemoryStore(config.size, config.ttl or None)
    # Only this store needs the redis package.
    from nereid_cache.redis_client import make_client  # noqa: PLC0415
    from nereid_cache.redis_store import RedisOptions, RedisStore  # noqa: PLC0415

    options = RedisOptions(
        namespace=config.namespace,
        time_to_live_ms=int(config.ttl * 1000),
        connections=config.pool_size,
        wait_timeout_s=config.wait_timeout / 1000 or None,
        run_timeout_s=_run_timeout_s(config),
    )
    return RedisStore(make_client(config), options)


def make_state(config: CacheConfig) -> RedisState | None:
    """Return the store for schedulers' state, or None if the cache is in memory."""
    if isinstance(config, LocalConfig):
        return None
    from nereid_cache.redis_client import make_client  # noqa: PLC0415
    from nereid_cache.redis_state import RedisState  # noqa: PLC0415

    return RedisState(make_client(config), config.namespace)


def _run_timeout_s(config: RedisConfig) -> float | None:
    if not config.connect_timeout or not config.socket_timeout:
        return None
    scheme = config.url.partition("://")[0]
    # Several servers may be tried, and the last one may be the right one.
    servers = config.url.count(",") + 2 if "+" in scheme else 1
    return servers * (config.connect_timeout + config.socket_timeout) / 1000


class CacheService:
    """One cache service; create it inside its event loop."""

    def __init__(
        self,
        store: ResponseStore,
        tracer: Tracer | None = None,
        options: ServerOptions | None = None,
        state: RedisState | None = None,
    ) -> None:
        """Create the service, which closes the tracer. tracer and state may be None."""
        self._state = state
        self._store = store
        self._options = options or ServerOptions()
        self._tracer = tracer
        # In the order in which they came, so that a simulation's history repeats.
        self._links: dict[Link[CacheReply], None] = {}
        self._server: Server | None = None
        self._usage_due: asyncio.TimerHandle | None = None

    @property
    def usage(self) -> CacheUsage:
        """Counters of the store."""
        self._store.refresh_usage()
        return self._store.usage

    def handlers(self) -> Handlers:
        """Return the handlers of all RPCs of the cache, for a server."""
        return Handlers(
            async_unary=state_handlers(self._state), stream={EXCHANGE_PATH: self._accept}
        )

    def attach(self, link: Link[CacheReply]) -> None:
        """Serve a scheduler over this link; call this before items arrive on the link."""
        link.on_items = partial(self._on_items, link)
        link.on_down = partial(self._links.pop, link, None)
        self._links[link] = None

    async def listen(self, settings: CacheSettings) -> str:
        """Serve at --cache-listen; return the bound address, or raise OSError."""
        handlers = guarded(self.handlers(), settings.mesh_guard())
        self._server = Server(handlers, settings.with_keepalive(ServerOptions()))
        address = settings.cache_listen
        tls = settings.mesh_tls_server(address)
        real = await self._server.listen(address, tls, private=settings.mesh_private)
        _log.info("listening at %s", real)
        return real

    async def close(self) -> None:
        """Stop at once. Schedulers treat a missing response as a miss."""
        if self._usage_due is not None:
            self._usage_due.cancel()
        await self._store.close()
        if self._state is not None:
            await self._state.close()
        for link in list(self._links):
            link.close()
        self._links.clear()
        if self._server is not None:
            await self._server.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def _accept(self, call: Call) -> None:
        codec = _SchedulerCodec()
        link: Link[CacheReply] = accept_link(
            call, codec, on_items=_ignore_items, on_down=_ignore_down
        )
        self.attach(link)

    def _on_items(self, link: Link[CacheReply], items: list[CacheRequest]) -> None:
        lookups = [item for item in items if isinstance(item, CacheLookup)]
        stores = [item for item in items if isinstance(item, CacheStore)]
        on_found: OnFound = partial(_send_results, link)
        on_stored: OnStored | None = None
        if self._tracer is not None and any(item.trace_context for item in items):
            trace = ExchangeTrace(self._tracer, lookups, stores)
            on_found, on_stored = partial(trace.on_found, on_found), trace.on_stored
        self._store.exchange(lookups, stores, on_found, on_stored)
        if self._usage_due is None:
            loop = asyncio.get_running_loop()
            self._usage_due = loop.call_later(_USAGE_DELAY_S, self._send_usage)

    def _send_usage(self) -> None:
        self._usage_due = None
        usage = replace(self.usage)
        for link in self._links:
            link.send(usage)


class _SchedulerCodec:
    def __init__(self) -> None:
        out = CacheReplyCodec()
        self.size_bytes, self.encode = out.size_bytes, out.encode
        self.decode = CacheRequestCodec().decode


def _send_results(link: Link[CacheReply], results: list[LookupResult]) -> None:
    for result in results:
        link.send(result)


def _ignore_items(items: list[CacheRequest]) -> None:
    pass


def _ignore_down() -> None:
    pass
