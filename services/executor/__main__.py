"""`python -m nereid.services.executor`: read the settings, join the scheduler, leave on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from nereid.config import flags
from nereid.observability.logging import set_up_logging
from nereid.observability.metrics_endpoint import MetricsEndpoint
from nereid.services.executor import settings as settings_module
from nereid.services.executor.backends.registry import BackendRegistry
from nereid.services.executor.service import ExecutorService

if TYPE_CHECKING:
    from nereid.services.executor.settings import ExecutorSettings

_log = logging.getLogger("nereid.services.executor")


def main() -> int:
    """Run the process; returns its exit code."""
    settings = settings_module.read()
    set_up_logging(settings, "executor")
    settings_module.prepare_environment()
    directory = settings.backend_directory
    backends = BackendRegistry(Path(directory) if directory else None)
    finished = uvloop.run(_serve(settings, backends))
    if not finished:
        _log.warning(
            "a batch was still running after --exit-timeout-secs=%g; exiting without its result",
            settings.exit_timeout_secs,
        )
    return 0 if finished else 1


async def _serve(settings: ExecutorSettings, backends: BackendRegistry) -> bool:
    service = ExecutorService(settings, backends)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.leave)
    endpoint = MetricsEndpoint(service.write_metrics)
    if settings.metrics_port >= 0:
        try:
            await endpoint.listen(settings.metrics_address, settings.metrics_port)
        except OSError as error:
            flags.refuse([f"--metrics-port: {error.strerror or error}"], settings_module.PROGRAM)
    try:
        return await service.run()
    finally:
        await endpoint.close()


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    # Finalisation would crash where a thread is stuck in a model's native code.
    os._exit(code)
