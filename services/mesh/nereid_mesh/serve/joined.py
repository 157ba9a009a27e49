"""Composition root of a process with gateway, scheduler and cache.

Requests and cached responses take links in memory, control calls the services' unix sockets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import nereid.process.uncollected  # noqa: F401 - must come before the other imports
from nereid import rpc
from nereid.config.inherited_secrets import read_environ
from nereid.config.settings_reader import read_shared_settings
from nereid.mesh_auth.roles import Role
from nereid.mesh_routing.access import OneScheduler
from nereid.observability.tracers import open_tracer
from nereid.process.inherited_ports import read_ports
from nereid.process.service_process import StartError, finish_start, run_service
from nereid.process.standby import stand_by
from nereid_cache.cache_config import LocalConfig
from nereid_cache.service import CacheService, make_state, make_store
from nereid_cache.settings import CacheSettings
from nereid_gateway.service import GatewayService, joined
from nereid_gateway.settings import GatewaySettings
from nereid_scheduler.service import FAILED_START_CODE, SchedulerService
from nereid_scheduler.settings import Settings as SchedulerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.cache_messages import CacheReply, CacheRequest
    from nereid.core.wire.messages import FromScheduler, ToScheduler
    from nereid.process.service_process import Shutdown

_PROGRAM = "nereid_mesh.serve.joined"
_log = logging.getLogger(__name__)


async def serve(
    scheduler_settings: SchedulerSettings,
    cache_settings: CacheSettings,
    gateway_settings: GatewaySettings,
    shutdown: Shutdown,
) -> int:
    """Serve until shutdown is requested or the start fails; return the exit code."""
    cache: CacheService | None = None
    open_cache_link: Callable[[], rpc.Link[CacheRequest]] | None = None
    store_config = cache_settings.store_config()
    if cache_settings.cache_config:
        cache = CacheService(
            make_store(store_config),
            open_tracer(cache_settings, "cache"),
            state=make_state(store_config),
        )
        open_cache_link = partial(_link_to, cache)
    scheduler = SchedulerService(
        scheduler_settings,
        open_cache_link,
        shutdown.request,
        cache_in_memory=isinstance(store_config, LocalConfig),
    )
    gateway_end: rpc.Link[ToScheduler]
    scheduler_end: rpc.Link[FromScheduler]
    gateway_end, scheduler_end = rpc.memory_links()
    # The first address is the scheduler's unix socket (planning.py).
    address = scheduler_settings.scheduler_address[0]
    options = gateway_settings.mesh_channel(address, Role.GATEWAY, rpc.ChannelOptions())
    channel = rpc.SocketChannel(address, options)
    gateway = GatewayService(
        gateway_settings,
        mesh=OneScheduler(joined(gateway_end), channel),
        ports=read_ports(os.environ),
    )
    try:
        if cache is not None:
            await cache.listen(cache_settings)
        await shutdown.await_start(scheduler.start())
        scheduler.attach(scheduler_end, has_access_control=bool(gateway_settings.auth_config))
        await gateway.start()
        # The gateway has missed the scheduler's earlier notices.
        scheduler.announce()
    except OSError as error:
        raise StartError(f"cannot listen: {error}") from error
    _log.info("open %s; %s", gateway.exposure(), scheduler.exposure())
    finishing = asyncio.create_task(finish_start(gateway.import_deferred))
    await shutdown.wait()
    finishing.cancel()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + gateway_settings.exit_timeout_secs
    await gateway.drain(gateway_settings.exit_timeout_secs)
    await channel.close()
    await scheduler.drain(max(0.0, deadline - loop.time()))
    if cache is not None:
        await cache.close()
    return FAILED_START_CODE if scheduler.failed_start else 0


def _link_to(cache: CacheService) -> rpc.Link[CacheRequest]:
    scheduler_end: rpc.Link[CacheRequest]
    cache_end: rpc.Link[CacheReply]
    scheduler_end, cache_end = rpc.memory_links()
    cache.attach(cache_end)
    return scheduler_end


def main() -> int:
    """Run the process until it exits; return the exit code."""
    stand_by(os.environ)
    # The scheduler's settings come first, because its --scheduler-address is the one that may be
    # repeated.
    classes: tuple[type[Any], ...] = (SchedulerSettings, GatewaySettings, CacheSettings)
    argv, environ = sys.argv[1:], read_environ()
    scheduler, gateway, cache = read_shared_settings(classes, argv, environ, _PROGRAM)
    serve_all = partial(serve, scheduler, cache)
    return run_service(gateway, serve_all, name="gateway+scheduler", program=_PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
