"""Tasks that wait until executors have finished loading versions, successfully or not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from nereid_scheduler.placement.models.catalogue import ServedVersion


class LoadWaiters:
    """Tasks that wait for loads. Any event of any version wakes all tasks."""

    def __init__(self, is_finished: Callable[[ServedVersion], bool]) -> None:
        self._is_finished = is_finished
        self._waiting: list[asyncio.Future[None]] = []

    async def wait_for_loads(
        self, versions: Collection[ServedVersion], no_executor_timeout_s: float | None
    ) -> bool:
        """Wait until all loads are finished; return False if no executor tries in time."""
        loop = asyncio.get_running_loop()
        idle_since_s = loop.time()
        while not all(map(self._is_finished, versions)):
            left_s = None
            if no_executor_timeout_s is not None:
                if any(served.life.loading for served in versions):
                    idle_since_s = loop.time()
                left_s = idle_since_s + no_executor_timeout_s - loop.time()
                if left_s <= 0:
                    return False
            change = loop.create_future()
            self._waiting.append(change)
            await asyncio.wait([change], timeout=left_s)
        return True

    def notify_all(self) -> None:
        """Wake the tasks to check again, since something has happened to a version."""
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)
