"""The executors of a simulated mesh; process after process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.executor import SimulatedExecutor
from tests.simulation.models import MODELS

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.surroundings import Surroundings

_LEAVE_S = 0.3
_MOST_LEAVES = 30


class ExecutorHost:
    """One of the executors."""

    def __init__(self, where: Surroundings, name: str) -> None:
        self._where = where
        self.name = name
        self._processes = 0
        self.process: Process | None = None
        self.executor: SimulatedExecutor | None = None

    def start(self) -> None:
        """Another process begins."""
        self._processes += 1
        process = self.process = self._where.start_process(self.name)
        models = {each.name: each for each in MODELS}
        self.executor = SimulatedExecutor(
            self._where, self.name, process, self._processes, models
        )
        self._where.loop.run_in(process, self.executor.start)

    def terminate(self) -> asyncio.Task[None] | None:
        """SIGTERM: it ends after the batches that it has."""
        if self.process is None or self.executor is None:
            return None
        return self._where.loop.spawn(self.process, _leave(self.executor))


async def _leave(executor: SimulatedExecutor) -> None:
    executor.leave()
    for _ in range(_MOST_LEAVES):
        await asyncio.sleep(_LEAVE_S)
        if executor.idle:
            return
