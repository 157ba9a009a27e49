"""`python -m nereid_scheduler`: the scheduler as a process of its own."""

from __future__ import annotations

# This import comes first: later ones must not load a file from the working directory instead.
import nereid.safe_path  # isort: split

import logging
import os
import sys
from typing import TYPE_CHECKING

import nereid.process.uncollected  # noqa: F401 - before all that it is for
from nereid.config.inherited_secrets import read_environ
from nereid.config.settings_reader import read_settings
from nereid.process.service_process import (
    StartError,
    freeze_started_objects,
    listening_for,
    metrics_port,
    run_service,
)
from nereid.process.standby import stand_by
from nereid_scheduler.service import FAILED_START_CODE, SchedulerService
from nereid_scheduler.settings import Settings

if TYPE_CHECKING:
    from nereid.process.service_process import Shutdown

_PROGRAM = "nereid scheduler"
_log = logging.getLogger(__name__)


async def serve(settings: Settings, shutdown: Shutdown) -> int:
    """Serve until shutdown is requested or the start failed; return the exit code."""
    service = SchedulerService(settings, on_failed_start=shutdown.request)
    with listening_for("--scheduler-address"):
        await shutdown.await_start(service.start())
    _log.info("open %s", service.exposure())
    try:
        async with metrics_port(settings, service.metrics.write, lambda: service.ready):
            freeze_started_objects()
            await shutdown.wait()
            _log.info("stopping: finishing what was accepted")
            await service.drain(settings.exit_timeout_secs)
    except StartError:
        await service.drain(0)
        raise
    return FAILED_START_CODE if service.failed_start else 0


def main() -> int:
    """Run the process; return its exit code."""
    stand_by(os.environ)
    settings = read_settings(Settings, sys.argv[1:], read_environ(), _PROGRAM)
    return run_service(settings, serve, name="scheduler", program=_PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
