"""Composition root of an executor in the process of gateway and scheduler."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid import rpc
from nereid_executor.backends.registry import BackendRegistry
from nereid_executor.service import ExecutorService, LocalScheduler
from nereid_executor.settings import ExecutorSettings, prepare_environment
from nereid_mesh.serve.inline_settings import InlineSettings

if TYPE_CHECKING:
    from nereid.process.service_process import Shutdown
    from nereid_scheduler.service import SchedulerService

_log = logging.getLogger(__name__)

SETTINGS: Final = (ExecutorSettings, InlineSettings)

# Seconds between forced switches of threads. With Python's default of 5 ms, an instance's thread
# would wait longer for the interpreter's lock than most models run. A forced switch costs about 10
# us.
_SWITCH_INTERVAL_S: Final = 0.0002


# Minimum time for closing models, however long the last responses have taken.
_CLOSE_MODELS_S: Final = 1.5


class _Executor:
    def __init__(self, settings: ExecutorSettings, local: LocalScheduler) -> None:
        directory = settings.backend_directory
        backends = BackendRegistry(Path(directory) if directory else None)
        self._local = local
        self._service = ExecutorService(settings, backends, local)
        self.run = asyncio.ensure_future(self._service.run())

    async def end(self, timeout_s: float) -> bool:
        """Leave once nothing is pending; return `False` if a batch is still running."""
        self._service.leave(max(timeout_s, _CLOSE_MODELS_S))
        # Nobody is left to notify, so end the streams as if the scheduler's process had ended.
        self._local.thread_streams.close()
        await self._local.channel.close()
        return await self.run


def add_executor(
    settings: ExecutorSettings,
    inline: InlineSettings,
    scheduler: SchedulerService,
    shutdown: Shutdown,
) -> _Executor:
    """Make an executor join a scheduler that has started. If it fails, the process ends."""
    prepare_environment()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    handlers = scheduler.handlers()
    local = LocalScheduler(
        rpc.LocalChannel(handlers), rpc.ThreadStreams(handlers), inline.inline_execution_us * 1000
    )
    # In this process, --scheduler-address is the scheduler's flag. Its first address is the
    # scheduler's own unix socket.
    address = scheduler.addresses[0]
    executor = _Executor(replace(settings, scheduler_address=address), local)

    def on_end(run: asyncio.Future[bool]) -> None:
        if not run.cancelled() and run.exception() is not None:
            _log.error("the executor failed; the process ends", exc_info=run.exception())
            shutdown.request()

    executor.run.add_done_callback(on_end)
    return executor
