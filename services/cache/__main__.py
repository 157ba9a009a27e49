"""`python -m nereid.services.cache`: read the settings, serve until a signal."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from functools import partial

import uvloop

from nereid.config.flags import read
from nereid.observability.logging import set_up_logging
from nereid.observability.metrics_endpoint import MetricsEndpoint
from nereid.observability.tracing import open_tracer
from nereid.services.cache import metrics
from nereid.services.cache.service import CacheService, make_store
from nereid.services.cache.settings import CacheSettings

_PROGRAM = "nereid.services.cache"


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
