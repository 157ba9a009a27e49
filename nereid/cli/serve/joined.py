"""Gateway, scheduler and cache in one process, joined in memory: its composition root.

With nereid.cli.serve.plan the only module that may know several services.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

import uvloop

from nereid import rpc
from nereid.config import flags
from nereid.observability.logging import set_up_logging
from nereid.observability.tracing import open_tracer
from nereid.services.cache.service import CacheService, make_store
from nereid.services.cache.settings import CacheSettings
from nereid.services.gateway.service import GatewayService, joined
from nereid.services.gateway.settings import GatewaySettings
from nereid.services.scheduler.service import FAILED_START_CODE, SchedulerService
from nereid.services.scheduler.settings import Settings as SchedulerSettings

if TYPE_CHECKING:
    from nereid.core.cache_messages import FromCache, ToCache
    from nereid.core.messages import FromScheduler, ToScheduler

_PROGRAM = "nereid.cli.serve.joined"


async def serve(
    gateway_settings: GatewaySettings,
    scheduler_settings: SchedulerSettings,
    cache_settings: CacheSettings,
) -> int:
    """Serve until a signal says to end; the exit code to leave with."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    cache: CacheService | None = None
    cache_end: rpc.Link[ToCache] | None = None
    if cache_settings.cache_config:
        asking_end: rpc.Link[FromCache]
        cache_end, asking_end = rpc.memory_links()
        cache = CacheService(
            make_store(cache_settings.store_config()), open_tracer(cache_settings, "cache")
        )
        cache.attach(asking_end)
    scheduler = SchedulerService(scheduler_settings, cache_end)
    scheduler.on_failed_start = ending.set
    gateway_end: rpc.Link[ToScheduler]
    scheduler_end: rpc.Link[FromScheduler]
    gateway_end, scheduler_end = rpc.memory_links()
    channel = rpc.LocalChannel(scheduler.handlers())
    gateway = GatewayService(gateway_settings, open_link=joined(gateway_end), channel=channel)
    try:
        await scheduler.start()
        scheduler.attach(scheduler_end)
        await gateway.start()
        # What was said before the gateway listened is lost.
        scheduler.announce()
    except OSError as error:
        flags.refuse([f"cannot listen: {error}"], _PROGRAM)
    # What lives by now lives for good: keep the collector from walking it again and again.
    gc.collect()
    gc.freeze()
    await ending.wait()
    deadline = loop.time() + gateway_settings.exit_timeout_secs
    await gateway.drain(gateway_settings.exit_timeout_secs)
    await scheduler.drain(max(0.0, deadline - loop.time()))
    if cache is not None:
        await cache.close()
    return FAILED_START_CODE if scheduler.failed_start else 0


def main() -> int:
    """Run the process."""
    # The scheduler's come first: of --scheduler-address it is the one that takes several.
    scheduler, gateway, cache = flags.read_all(
        (SchedulerSettings, GatewaySettings, CacheSettings), sys.argv[1:], os.environ, _PROGRAM
    )
    set_up_logging(gateway, "gateway+scheduler")
    return uvloop.run(serve(gateway, scheduler, cache))


if __name__ == "__main__":
    sys.exit(main())
