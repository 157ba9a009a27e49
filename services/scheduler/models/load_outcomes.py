"""Waiting for what becomes of versions: until executors have loaded them, or have failed to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from nereid.services.scheduler.models.catalogue import ServedVersion


class Verdicts:
    """Who waits. is_decided: whether there is something to be waited for no longer."""

    def __init__(self, is_decided: Callable[[ServedVersion], bool]) -> None:
        self._is_decided = is_decided
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self, versions: Collection[ServedVersion], patience_s: float | None) -> bool:
        """Wait for all of these.

        False: no executor has tried for so long that there is nothing to wait for.
        """
        loop = asyncio.get_running_loop()
        idle_since_s = loop.time()
        while not all(map(self._is_decided, versions)):
            left_s = None
            if patience_s is not None:
                if any(served.life.attempted for served in versions):
                    idle_since_s = loop.time()
                left_s = idle_since_s + patience_s - loop.time()
                if left_s <= 0:
                    return False
            change = loop.create_future()
            self._waiting.append(change)
            await asyncio.wait([change], timeout=left_s)
        return True

    def reconsider(self) -> None:
        """Something has happened to some version."""
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)
