"""The cache of a simulated mesh: the service itself, with the store in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_cache.memory_store import MemoryStore
from nereid_cache.service import CacheService
from tests.simulation.schedulers import CACHE

if TYPE_CHECKING:
    import asyncio

    from tests.simulation.processes import Process
    from tests.simulation.surroundings import Surroundings

_BYTES = 1 << 20


class CacheHost:
    """Process after process; each begins with an empty store."""

    name = CACHE

    def __init__(self, where: Surroundings) -> None:
        self._where = where
        self.process: Process | None = None

    def start(self) -> None:
        """Another process begins."""
        process = self.process = self._where.start_process(self.name)
        service = self._where.loop.run_in(process, CacheService, MemoryStore(_BYTES))
        self._where.network.listen(process, self.name, service.handlers())

    def terminate(self) -> asyncio.Task[None] | None:
        """SIGTERM: it ends at once."""
        if self.process is None:
            return None
        work = self._where.network.stop_listening(self.process)
        return self._where.loop.spawn(self.process, work)
