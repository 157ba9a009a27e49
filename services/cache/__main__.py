"""`python -m services.cache`: read the settings, serve until a signal."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from functools import partial

import uvloop

from nereid.flags import read
from nereid.metrics_endpoint import MetricsEndpoint
from nereid.telemetry import set_up_logging
from nereid.tracing import open_tracer
from services.cache import metrics
from services.cache.service import CacheService, make_store
from services.cache.settings import CacheSettings

_PROGRAM = "services.cache"


async def serve(settings: CacheSettings) -> int:
    """Serve until a signal says to end; the exit code to leave with."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    service = CacheService(make_store(settings.store_config()), open_tracer(settings, "cache"))
    try:
        await service.listen(settings.cache_listen, settings.mesh_tls_server(settings.cache_listen))
    except OSError as error:
        sys.stderr.write(f"{_PROGRAM}: --cache-listen: {error.strerror or error}\n")
        await service.close()
        return 2
    endpoint = MetricsEndpoint(partial(metrics.write, service))
    if settings.metrics_port >= 0:
        try:
            await endpoint.listen(settings.metrics_address, settings.metrics_port)
        except OSError as error:
            sys.stderr.write(f"{_PROGRAM}: --metrics-port: {error.strerror or error}\n")
            await service.close()
            return 2
    gc.collect()
    gc.freeze()
    await ending.wait()
    await endpoint.close()
    await service.close()
    return 0


def main() -> int:
    """Run the process."""
    settings = read(CacheSettings, sys.argv[1:], os.environ, _PROGRAM)
    set_up_logging(settings, "cache")
    return uvloop.run(serve(settings))


if __name__ == "__main__":
    sys.exit(main())
