"""The gateway as a process of its own: settings, wiring, signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from typing import TYPE_CHECKING

import uvloop

from nereid.mesh_client import dial_scheduler
from nereid.observability.logging import set_up_logging
from nereid.rpc import ChannelOptions, SocketChannel
from nereid.services.gateway import settings as gateway_settings
from nereid.services.gateway.service import GatewayService
from nereid.shm.segments import memory_domain

if TYPE_CHECKING:
    from nereid.services.gateway.settings import GatewaySettings


async def serve(settings: GatewaySettings) -> int:
    """Serve until a signal; the exit code."""
    tls = settings.mesh_tls_client(settings.scheduler_address)
    channel = SocketChannel(settings.scheduler_address, ChannelOptions(tls=tls))
    open_link = dial_scheduler(channel, memory_domain(settings.shm_limit_bytes))
    service = GatewayService(settings, open_link=open_link, channel=channel)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        await service.start()
    except OSError as error:
        sys.stderr.write(f"{gateway_settings.PROGRAM}: cannot listen: {error}\n")
        await channel.close()
        return 2
    # What exists by now is permanent: exclude it from garbage collections.
    gc.collect()
    gc.freeze()
    await stopping.wait()
    await service.drain(settings.exit_timeout_secs)
    await channel.close()
    return 0


def main() -> int:
    """Run the process."""
    settings = gateway_settings.read()
    set_up_logging(settings, "gateway")
    with contextlib.suppress(KeyboardInterrupt):
        return uvloop.run(serve(settings))
    return 130


if __name__ == "__main__":
    sys.exit(main())
