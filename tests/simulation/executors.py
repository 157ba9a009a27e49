"""The executors of a simulated mesh; process after process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.executor import SimulatedExecutor
from tests.simulation.models import MODELS

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.surroundings import Surroundings


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
        loop = self._where.loop
        self.executor = loop.run_in(
            process, SimulatedExecutor, self._where, self.name, process, self._processes, models
        )
        loop.run_in(process, self.executor.start)

    def terminate(self) -> asyncio.Task[None] | None:
        """SIGTERM: it ends after the batches that it has."""
        if self.process is None or self.executor is None:
            return None
        return self._where.loop.spawn(self.process, self.executor.leave())

    def leaks(self) -> list[str]:
        """What the last process should not have any more."""
        return [] if self.executor is None else self.executor.leaks()
