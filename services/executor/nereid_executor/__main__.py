"""`python -m nereid_executor` joins the scheduler, executes batches, and leaves on SIGTERM."""

from __future__ import annotations

# This import comes before any import that a file in the start directory could shadow.
import nereid.safe_path  # isort: split

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nereid.process.uncollected  # noqa: F401 - before the imports whose objects it exempts
from nereid.process.service_process import metrics_port, run_service
from nereid.process.standby import stand_by
from nereid_executor import settings as settings_module
from nereid_executor.backends.registry import BackendRegistry
from nereid_executor.service import ExecutorService

if TYPE_CHECKING:
    from nereid.process.service_process import Shutdown
    from nereid_executor.settings import ExecutorSettings

_log = logging.getLogger("nereid_executor")


async def serve(settings: ExecutorSettings, shutdown: Shutdown) -> int:
    """Serve until shutdown is requested; return the exit code."""
    settings_module.prepare_environment()
    directory = settings.backend_directory
    backends = BackendRegistry(Path(directory) if directory else None)
    service = ExecutorService(settings, backends)
    leaving = asyncio.ensure_future(shutdown.wait())
    leaving.add_done_callback(lambda _: service.leave())
    try:
        async with metrics_port(settings, service.write_metrics, lambda: service.ready):
            finished = await service.run()
    finally:
        leaving.cancel()
    if not finished:
        _log.warning(
            "a batch was still running after --exit-timeout-secs=%g; exiting without its result",
            settings.exit_timeout_secs,
        )
    return 0 if finished else 1


def main() -> int:
    """Run the executor's process; return the exit code."""
    stand_by(os.environ)
    settings = settings_module.read()
    return run_service(settings, serve, name="executor", program=settings_module.PROGRAM)


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    # If a thread is stuck in a model's own code, a normal exit would crash the interpreter.
    os._exit(code)
