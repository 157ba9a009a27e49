"""The schedulers of a simulated mesh: the service itself, over the simulated network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.config.recovery import DEFAULT_TIMES
from nereid.rpc import BackoffOptions
from nereid_scheduler.control.state.state import SchedulerState
from nereid_scheduler.service import SchedulerService
from nereid_scheduler.settings import Settings

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from nereid.rpc import Channel, Handlers
    from nereid_scheduler.control.state.files import StateFiles
    from tests.simulation.processes import Process
    from tests.simulation.surroundings import Surroundings

CACHE = "cache-0"
_TOKEN = "of the simulation"
_EXIT_S = 10.0
_PEER_KEEPALIVE_S = DEFAULT_TIMES.peer_ping_after_s, DEFAULT_TIMES.peer_ping_reply_s
_PEER_BACKOFF = BackoffOptions(first_s=0.02, largest_s=0.5)
_DISK_S = (0.0002, 0.01)


class SimulatedPorts:
    """A MeshPorts of one process."""

    def __init__(self, where: Surroundings, process: Process, address: str) -> None:
        self._where = where
        self._process = process
        self._address = address

    def open_peer(self, address: str) -> Channel:
        return self._where.open_channel(
            self._process, address, keepalive_s=_PEER_KEEPALIVE_S, backoff=_PEER_BACKOFF
        )

    def open_cache(self) -> Channel | None:
        return self._where.open_channel(self._process, CACHE)

    async def listen(self, handlers: Handlers) -> list[str]:
        self._where.network.listen(self._process, self._address, handlers)
        return [self._address]

    async def close(self) -> None:
        await self._where.network.stop_listening(self._process)


class Disk:
    """Blocking calls take a while, one after another."""

    def __init__(self, where: Surroundings) -> None:
        self._where = where
        self._busy_until_s = 0.0

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        loop = self._where.loop
        done = loop.create_future()
        took_s = self._where.random.uniform(*_DISK_S)
        self._busy_until_s = max(self._busy_until_s, loop.time()) + took_s

        def call() -> None:
            try:
                result = function(*arguments)
            except BaseException as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        loop.call_at(self._busy_until_s, call)
        return await done

    def close(self) -> None:
        """Nothing is open."""


class SchedulerHost:
    """One of the schedulers; process after process."""

    def __init__(
        self,
        where: Surroundings,
        address: str,
        repository: Path,
        open_state: Callable[[str], StateFiles],
        mode: str,
    ) -> None:
        """mode: of model control."""
        self._where = where
        self.address = address
        self.name = address.partition(":")[0]
        self._open_state = open_state
        several = len(where.addresses) > 1
        self.settings = Settings(
            model_repository=(str(repository),),
            model_control_mode=mode,
            load_model=("*",) if mode == "explicit" else (),
            repository_poll_secs=2.0,
            scheduler_address=(address,),
            scheduler_name=self.name,
            scheduler_peers=",".join(where.addresses) if several else None,
            disable_auto_complete_config=True,
            exit_timeout_secs=_EXIT_S,
            mesh_token=_TOKEN,
        )
        self.process: Process | None = None
        self.service: SchedulerService | None = None

    def start(self) -> None:
        """Another process begins."""
        process = self.process = self._where.start_process(self.name)
        self._where.loop.spawn(process, self._run(process))

    async def _run(self, process: Process) -> None:
        store = self._where.bugs.open_store(self._open_state(self.name), Disk(self._where))
        self.service = SchedulerService(
            self.settings,
            state=SchedulerState(store, start_s=DEFAULT_TIMES.state_s),
            ports=SimulatedPorts(self._where, process, self.address),
        )
        await self.service.start()

    def terminate(self) -> asyncio.Task[None] | None:
        """SIGTERM: it drains, and ends."""
        process, service = self.process, self.service
        if process is None or service is None:
            return None
        return self._where.loop.spawn(process, service.drain(_EXIT_S))
