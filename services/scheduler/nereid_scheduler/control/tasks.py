"""Tasks of model control, which end with the scheduler."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from nereid.core.errors import NereidError

if TYPE_CHECKING:
    from collections.abc import Coroutine

_log = logging.getLogger(__name__)


class Tasks:
    """Tasks in progress. Create it inside the event loop that it runs in."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.closed = False

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` in a task; log unexpected errors. After `close`, cancel the task at once."""
        task = asyncio.get_running_loop().create_task(work)
        if self.closed:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def close(self) -> None:
        """Cancel all tasks."""
        self.closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NereidError):
            _log.error("unexpected error in a load or unload", exc_info=error)
