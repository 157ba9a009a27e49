"""One campaign: a mesh, clients, faults by a schedule, and the check of what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tests.support.mesh.mesh import ask
from tests.support.waiting import until
from tests.torment.checker import AFTERMATH_S, Evidence, Violation, check
from tests.torment.client_process import PATIENCE_S, Plan
from tests.torment.contract import MODELS
from tests.torment.disruptions import KINDS, Disruption, Occurrence, schedule
from tests.torment.history import lines_of, read_history
from tests.torment.hosts import Hosts, run
from tests.torment.log_lines import unpermitted
from tests.torment.nemeses import Nemeses, missing
from tests.torment.repository import Repository
from tests.torment.services import Services, Shape
from tests.torment.shapes import Load, Phase, Timeline, phases

# How long a mesh may take to start, and to be well again after the last fault.
_START_S: Final = 300.0
# Of one service's log; one defect may repeat itself.
_MAX_LINES: Final = 20
_PENDING: Final = re.compile(r"^nereid_gateway_pending_requests(?:\{.*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Settings:
    """What a campaign is; with the seed it decides the faults."""

    seed: int
    output: Path
    # It is over after so long, or so many requests if there is such a number.
    minutes: float = 2.0
    requests: int = 0
    disruptions: list[str] = field(default_factory=lambda: list(KINDS))
    every_s: float = 4.0
    # Over after so many faults as well, if there is such a number.
    most: int = 0
    # At least so many requests end between two faults: a slow machine gets no more of them than a
    # mesh can recover from.
    pace: int = 40
    shape: Shape = field(default_factory=Shape)
    processes: int = 2
    # Of each process.
    clients: int = 11
    pause_s: float = 0.02
    isolated: bool = True
    models: list[str] = field(default_factory=lambda: list(MODELS))
    # Of the load; none: that of the clients and their pause alone.
    shapes: list[str] = field(default_factory=list)
    # How long failures may be those of a fault that is over.
    aftermath_s: float = AFTERMATH_S
    # More flags for every service.
    flags: list[str] = field(default_factory=list)
    # Checkouts whose releases a rolling restart goes through, in turn; this one, if there are none.
    trees: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Outcomes:
    """What came of a campaign."""

    evidence: Evidence
    violations: list[Violation]
    # What services did that they should not, beside what clients saw.
    complaints: list[str]
    notes: list[str]
    left_out: dict[str, str]
    load: Load

    @property
    def is_good(self) -> bool:
        return not self.violations and not self.complaints


class Campaign:
    """Runs once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._origin_s = time.monotonic()
        self._directory = settings.output.resolve()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        self._runs = self._directory / "runs"
        self._runs.touch()
        self._occurrences: list[Occurrence] = []
        # Of each client process: how many requests have ended, and by model when the last one began
        # that ended well.
        self._ended: dict[int, int] = {}
        self._right_s: dict[int, dict[str, float]] = {}
        # Models that clients have.
        self._served: set[str] = set()
        self._load_made = Load(Timeline(phases(settings.seed, settings.shapes, settings.models)))
        self._clients: list[asyncio.subprocess.Process] = []
        self._counts: list[asyncio.Task[None]] = []

    def _now_s(self) -> float:
        return time.monotonic() - self._origin_s

    async def run(self) -> Outcomes:
        settings = self._settings
        left_out = missing(settings.disruptions, isolated=settings.isolated)
        kinds = [each for each in settings.disruptions if each not in left_out]
        disk = self._directory / "disk"
        disk.mkdir()
        if settings.isolated:
            # Nobody outside sees it, and it ends with this process.
            run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk))
        repository = Repository(disk / "models", self._runs)
        repository.write()
        hosts = Hosts(settings.isolated)
        services = Services(
            settings.shape,
            hosts,
            repository.directory,
            self._directory,
            flags=settings.flags,
            trees=settings.trees,
        )
        nemeses = Nemeses(services, repository, self._directory, self._now_s)
        if "clock" in kinds:
            nemeses.prepare_clocks()
        try:
            services.start()
            await self._await_ready(services)
            async with self._load(services):
                await self._torment(kinds, services, nemeses)
                try:
                    await self._await_ready(services)
                    await self._settle()
                except TimeoutError:
                    complaint = (
                        f"the mesh was not well within {_START_S:.0f} s after the last fault"
                    )
                    nemeses.complaints.append(complaint)
            await self._end(services, nemeses)
        finally:
            services.close()
            hosts.close()
        return self._outcomes(nemeses, services, left_out)

    async def _await_ready(self, services: Services) -> None:
        """Every gateway says that the mesh is ready.

        Raises:
            TimeoutError: one does not.
        """

        async def is_ready(address: str) -> bool:
            self._watch(services)
            return await asyncio.to_thread(_is_ready, address)

        async with asyncio.timeout(_START_S):
            for address in services.http:
                await until(partial(is_ready, address), _START_S)

    @asynccontextmanager
    async def _load(self, services: Services) -> AsyncIterator[None]:
        """Client processes; at the end they finish what they have begun."""
        settings = self._settings
        self._load_made.begin_s = self._now_s()
        for number in range(settings.processes):
            plan = Plan(
                process=number + 1,
                seed=settings.seed,
                origin_s=self._origin_s,
                http=services.http,
                grpc=services.grpc,
                history=str(self._directory / f"history-{number}"),
                clients=settings.clients,
                pause_s=settings.pause_s,
                models=settings.models,
                shapes=settings.shapes,
                begin_s=self._load_made.begin_s,
                processes=settings.processes,
            )
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.torment.client_process", plan.to_json()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=(self._directory / f"clients-{number}.log").open("wb"),
            )
            self._clients.append(process)
            self._served |= {plan.model_of(each) for each in range(plan.most_clients)}
        self._counts = [
            asyncio.create_task(self._count(number, process))
            for number, process in enumerate(self._clients)
        ]
        watched = asyncio.create_task(self._watch_load(services))
        try:
            yield
            for process in self._clients:
                assert process.stdin
                process.stdin.write(b"\n")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S + 30):
                    await asyncio.gather(*self._counts)
        finally:
            watched.cancel()
            for process in self._clients:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _watch_load(self, services: Services) -> None:
        last: Phase | None = None
        while True:
            phase = self._load_made.phase_at(self._now_s())
            if self._settings.shapes and phase is not last:
                print(f"{self._now_s():8.1f} s  {self._requests:8d} requests  load: {phase}")
            last = phase
            asked = (asyncio.to_thread(_pending_requests, each) for each in services.metrics)
            pending = await asyncio.gather(*asked)
            self._load_made.pending.append((self._now_s(), sum(pending)))
            await asyncio.sleep(1)

    async def _count(self, number: int, process: asyncio.subprocess.Process) -> None:
        assert process.stdout
        async for line in process.stdout:
            self._ended[number], self._right_s[number], cpu_s, stalled_s = json.loads(line)
            self._load_made.cpu_s[number], self._load_made.stalled_s[number] = cpu_s, stalled_s
        if await process.wait():
            raise RuntimeError(f"a client process failed; see clients-{number}.log")

    @property
    def _requests(self) -> int:
        return sum(self._ended.values())

    async def _torment(self, kinds: list[str], services: Services, nemeses: Nemeses) -> None:
        settings = self._settings
        begin_s = self._now_s()
        names = list(services.by_name)
        disruptions = schedule(settings.seed, kinds, names, settings.every_s)
        pending: Disruption | None = next(disruptions, None)
        strikes: list[asyncio.Task[None]] = []
        next_at = self._requests + settings.pace
        # By which the schedule is behind, since the mesh was.
        lag_s = 0.0

        def is_over() -> bool:
            if settings.most and len(strikes) == settings.most:
                return self._requests >= next_at
            if settings.requests and self._requests >= settings.requests:
                return True
            return self._now_s() - begin_s >= settings.minutes * 60

        while not is_over():
            overdue_s = self._now_s() - begin_s - lag_s - pending.at_s if pending else -1.0
            is_enough = settings.most and len(strikes) == settings.most
            if pending and overdue_s >= 0 and self._requests >= next_at and not is_enough:
                lag_s += overdue_s
                strikes.append(asyncio.create_task(self._strike(nemeses, pending)))
                pending = next(disruptions)
                next_at = self._requests + settings.pace
            self._watch(services)
            for count in self._counts:
                if count.done():
                    count.result()
            await asyncio.sleep(0.02)
        # Each ends by itself; an error in one is the campaign's.
        await asyncio.gather(*strikes)

    async def _strike(self, nemeses: Nemeses, disruption: Disruption) -> None:
        print(f"{self._now_s():8.1f} s  {self._requests:8d} requests  {disruption}", flush=True)
        began_s = self._now_s()
        try:
            await nemeses.strike(disruption)
        finally:
            self._occurrences.append(Occurrence(disruption, began_s, self._now_s()))

    def _watch(self, services: Services) -> None:
        """Services that end by themselves begin again, as under any supervisor."""
        for service in services.by_name.values():
            if not service.lock.locked():
                service.note_unexpected_end()

    async def _settle(self) -> None:
        """Until each model has served a request that began since.

        Raises:
            TimeoutError: one has not.
        """
        now_s = self._now_s()
        await until(
            lambda: all(
                any(each.get(name, 0.0) >= now_s for each in self._right_s.values())
                for name in self._served
            ),
            _START_S,
        )

    async def _end(self, services: Services, nemeses: Nemeses) -> None:
        """As an operator would: gateways first."""
        for kind in ("gateway", "executor", "scheduler", "cache"):
            ending = [nemeses.terminate(each) for each in services.of(kind)]
            await asyncio.gather(*ending)

    def _outcomes(self, nemeses: Nemeses, services: Services, left_out: dict[str, str]) -> Outcomes:
        history = read_history(lines_of(sorted(self._directory.glob("history-*"))))
        runs = [int(each) for each in self._runs.read_text().split()]
        aftermath_s = self._settings.aftermath_s
        evidence = Evidence(history, self._occurrences, nemeses.written_s, runs, aftermath_s)
        complaints = [*nemeses.complaints]
        for service in services.by_name.values():
            complaints += service.unexpected
            kinds = {each.disruption.kind for each in self._occurrences} | {*self._settings.shapes}
            with service.log.open(errors="replace") as log:
                lines = list(unpermitted(log, kinds))
            complaints += [f"{service.name} logged: {line}" for line in lines[:_MAX_LINES]]
        violations = check(evidence)
        return Outcomes(evidence, violations, complaints, nemeses.notes, left_out, self._load_made)


def _pending_requests(metrics: str) -> float:
    """Of one gateway; of one that does not serve its metrics, none."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        _, page = ask(metrics, "/metrics")
        return sum(map(float, _PENDING.findall(page.decode())))
    return 0.0


def _is_ready(address: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return ask(address, "/v2/health/ready")[0] == 200
    return False
