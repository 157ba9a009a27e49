"""A simulated mesh: gateways, one to three schedulers, executors and a cache, with faults by the
campaign's schedule, and the campaign's contract.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nereid.pb import kserve_pb2
from nereid_scheduler.control.state.files import StateFiles
from tests.simulation.bugs import Bugs
from tests.simulation.cache import CacheHost
from tests.simulation.clients import Clients
from tests.simulation.disruptions import GUEST, Disruptions, hosts_by_name
from tests.simulation.executors import ExecutorHost
from tests.simulation.gateways import CLIENTS, GatewayHost
from tests.simulation.history import History, LogLines
from tests.simulation.network import Network
from tests.simulation.operator import Operator
from tests.simulation.processes import MeshLoop, Process
from tests.simulation.repository import SimulatedRepository
from tests.simulation.runs import Runs
from tests.simulation.schedulers import SchedulerHost
from tests.simulation.surroundings import Surroundings
from tests.torment.checker import Evidence, check
from tests.torment.history import History as Requests

if TYPE_CHECKING:
    from collections import Counter

    from benchmarks.simulation.virtual_time import Clock

# Until all services have found each other.
_START_S = 8.0
# From the last fault on, all that is open must end within this time.
_QUIET_S = 60.0
_CALM_S = 12.0
_STEP_S = 0.1
_SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Outcome:
    """Of a simulation. shape: how many of each service there were, and what is so by the seed."""

    seed: int
    shape: str
    simulated_s: float
    requests: int
    most_open: int
    ends: Counter[str]
    disruptions: Counter[str]
    events: Counter[str]
    violations: list[str]
    digest: str
    story: list[str]


async def simulate(
    clock: Clock,
    choices: random.Random,
    seed: int,
    duration_s: float,
    *,
    bug: str = "",
    story: int | None = None,
) -> Outcome:
    """Run a mesh for so long, with faults for most of it. Call in a MeshLoop with these choices."""
    directory = Path(tempfile.mkdtemp(dir=_SHARED_MEMORY))
    try:
        return await _Simulation(clock, choices, seed, directory, bug, story).run(duration_s)
    finally:
        shutil.rmtree(directory)


class _Simulation:
    def __init__(
        self,
        clock: Clock,
        choices: random.Random,
        seed: int,
        directory: Path,
        bug: str,
        story: int | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MeshLoop), "of all processes"
        self._loop = loop
        self._seed = seed
        self._history = history = History(clock, story)
        schedulers = choices.choices((1, 2, 3), weights=(4, 4, 2))[0]
        gateways, executors = choices.randint(1, 3), choices.randint(2, 4)
        self._mode = choices.choices(("poll", "explicit"), weights=(3, 1))[0]
        self._every_s = choices.choice((1.0, 4.0, 15.0, 60.0))
        self._streams = choices.random() < 0.5
        pause_s = choices.choices((0.04, 0.15, 0.4), weights=(1, 2, 2))[0]
        self.shape = (
            f"{gateways} gateways, {schedulers} schedulers ({self._mode}), {executors} executors,"
            f" a fault every {self._every_s:g} s{' and of streams' if self._streams else ''}"
        )
        addresses = [f"scheduler-{number}:8003" for number in range(schedulers)]
        self._runs = Runs(history)
        self._where = where = Surroundings(
            loop,
            choices,
            Network(loop, choices, self._on_connection_lost),
            history,
            self._runs,
            Bugs(bug, choices),
            addresses,
        )
        self._repository = SimulatedRepository(directory / "models", clock)
        self._repository.write()
        self._state = directory / "state"
        self._disk_errors: dict[str, int] = {}
        clients = Process(CLIENTS)
        self._gateways = [
            GatewayHost(where, f"gateway-{number}", clients) for number in range(gateways)
        ]
        self._schedulers = [
            SchedulerHost(where, each, self._repository.directory, self._open_state, self._mode)
            for each in addresses
        ]
        self._executors = [ExecutorHost(where, f"executor-{n}") for n in range(executors)]
        self._caches = [CacheHost(where)]
        hosts = hosts_by_name(self._gateways, self._schedulers, self._executors, self._caches)
        self._hosts = hosts
        self._clients = Clients(where, self._gateways, pause_s)
        self._client_process = clients
        self._operator = Operator(where, self._gateways)
        self._disruptions = Disruptions(
            where,
            hosts,
            ExecutorHost(where, GUEST),
            self._repository,
            self._reload,
            self._disk_errors,
        )

    def _on_connection_lost(self, client: Process) -> None:
        if client.name.startswith("gateway"):
            self._runs.on_link_lost()

    def _open_state(self, scheduler: str) -> StateFiles:
        def on_step(step: str) -> None:
            code = self._disk_errors.get(scheduler)
            if code is not None:
                raise OSError(code, f"injected at '{step}'")

        return StateFiles(str(self._state), on_step)

    def _reload(self, model: str) -> None:
        """Clients load what was edited, where the schedulers do not look by themselves."""
        gateway = self._where.random.choice(self._gateways)
        if self._mode != "explicit" or gateway.gateway is None or gateway.process is None:
            return
        request = kserve_pb2.RepositoryModelLoadRequest(model_name=model).SerializeToString()
        control = gateway.gateway.control

        async def load() -> None:
            try:
                await control.load(request)
            except Exception as error:
                self._history.add("load failed", f"{model}: {error}")
            else:
                self._history.add("loaded", model)

        self._loop.spawn(gateway.process, load())

    async def run(self, duration_s: float) -> Outcome:
        loop, history = self._loop, self._history
        began_s = loop.time()
        lines = LogLines(history, self._disruptions.counts)
        logging.getLogger().addHandler(lines)
        try:
            for host in self._hosts.values():
                host.start()
            await self._pass(began_s + _START_S)
            loop.run_in(self._client_process, self._clients.start)
            self._disruptions.start(self._seed, self._every_s, streams=self._streams)
            operating = None
            if self._mode == "explicit":
                operating = asyncio.ensure_future(self._operator.run())
            await self._pass(began_s + duration_s)
            await self._disruptions.end()
            self._operator.end()
            if operating is not None:
                await asyncio.wait({operating}, timeout=_QUIET_S)
            await self._pass(loop.time() + _CALM_S)
            self._clients.end()
            loop.run_in(self._client_process, self._clients.send_last)
            quiet_s = loop.time() + _QUIET_S
            while self._clients.open and loop.time() < quiet_s and not history.violations:
                await asyncio.sleep(_STEP_S)
            if not history.violations:
                self._check()
        finally:
            logging.getLogger().removeHandler(lines)
        return Outcome(
            self._seed,
            self.shape,
            loop.time() - began_s,
            self._clients.sent,
            self._clients.most_open,
            self._clients.ends,
            self._disruptions.counts,
            history.events,
            list(history.violations),
            history.digest,
            history.story,
        )

    def _check(self) -> None:
        requests = self._history.requests
        if self._mode == "explicit":
            served = self._operator.served_unloaded(
                requests.values(), self._disruptions.occurrences
            )
            if served:
                self._history.violate("served though it was unloaded", served[:5])
            requests = {
                number: each
                for number, each in requests.items()
                if not self._operator.is_refused(each)
            }
        evidence = Evidence(
            Requests(requests, tuple(self._history.repeated)),
            self._disruptions.occurrences,
            self._repository.written_s,
            self._runs.once,
        )
        for host in self._executors:
            for leak in host.leaks():
                self._history.violate(leak)
        for violation in check(evidence):
            self._history.violate(f"{violation.rule}: {violation.text}", violation.requests)

    async def _pass(self, until_s: float) -> None:
        """Let time pass, unless something is found."""
        while self._loop.time() < until_s and not self._history.violations:
            await asyncio.sleep(_STEP_S)
