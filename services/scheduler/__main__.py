"""`python -m nereid.services.scheduler`: read the settings, run until a signal, drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys

import uvloop

from nereid.config.flags import read
from nereid.observability.logging import set_up_logging
from nereid.observability.metrics_endpoint import MetricsEndpoint
from nereid.services.scheduler.service import FAILED_START_CODE, SchedulerService
from nereid.services.scheduler.settings import Settings

_PROGRAM = "nereid scheduler"
_log = logging.getLogger(__name__)


async def _run(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    service = SchedulerService(settings)
    service.on_failed_start = stop.set
    try:
        await service.start()
    except OSError as error:
        sys.stderr.write(f"{_PROGRAM}: --scheduler-address: {error.strerror or error}\n")
        return 2
    endpoint = MetricsEndpoint(service.metrics.write)
    if settings.metrics_port >= 0:
        try:
            await endpoint.listen(settings.metrics_address, settings.metrics_port)
        except OSError as error:
            sys.stderr.write(f"{_PROGRAM}: --metrics-port: {error.strerror or error}\n")
            await service.drain(0)
            return 2
    # What lives from here on until the end is not worth looking at in every collection.
    gc.collect()
    gc.freeze()
    await stop.wait()
    _log.info("stopping: finishing what was accepted")
    await service.drain(settings.exit_timeout_secs)
    await endpoint.close()
    return FAILED_START_CODE if service.failed_start else 0


def main() -> int:
    settings = read(Settings, sys.argv[1:], os.environ, _PROGRAM)
    set_up_logging(settings, "scheduler")
    return uvloop.run(_run(settings))


if __name__ == "__main__":
    sys.exit(main())
