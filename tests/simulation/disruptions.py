"""What makes the campaign's faults happen in a simulation, on its schedule, and faults of single
streams beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from tests.torment.disruptions import Disruption, Occurrence, schedule

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from tests.simulation.executors import ExecutorHost
    from tests.simulation.network import Connection
    from tests.simulation.processes import Process
    from tests.simulation.repository import SimulatedRepository
    from tests.simulation.surroundings import Surroundings

    Nemesis = Callable[[Disruption], AbstractAsyncContextManager[None]]

_SERVICES: Final = ("gateway", "scheduler", "executor", "cache")
# Of the campaign's.
KINDS: Final = (
    *(f"{how}-{service}" for how in ("kill", "stop", "roll") for service in _SERVICES),
    "kill-worker",
    "stop-worker",
    "partition",
    "loss",
    "delay",
    "reload",
    "broken-edit",
    "disk-full",
    "disk-readonly",
    "join",
)
GUEST: Final = "executor-guest"
# After SIGTERM.
_EXIT_S: Final = 15.0
# Between faults of single streams.
_MEAN_PAUSE_S: Final = 0.3
_OF_STREAMS: Final = {"stall": 8, "pause": 6, "break": 2}


class Host(Protocol):
    """A service of the mesh; process after process."""

    name: str
    process: Process | None

    def start(self) -> None: ...
    def terminate(self) -> asyncio.Task[None] | None: ...


class Disruptions:
    """Of one simulation. They happen outside of all processes."""

    def __init__(
        self,
        where: Surroundings,
        hosts: Mapping[str, Host],
        guest: ExecutorHost,
        repository: SimulatedRepository,
        reload: Callable[[str], None],
        disk_errors: dict[str, int],
    ) -> None:
        """reload: have the mesh load a model that was edited, if it does not look by itself.
        disk_errors: what each scheduler's disk replies, by its name.
        """
        self._where = where
        self._hosts = hosts
        self._guest = guest
        self._repository = repository
        self._reload_model = reload
        self._disk_errors = disk_errors
        self._locks = {name: asyncio.Lock() for name in (*hosts, GUEST, "repository")}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = False
        self.occurrences: list[Occurrence] = []
        self.counts: Counter[str] = Counter()
        self._table: dict[str, Nemesis] = {
            **{f"kill-{each}": self._kill for each in _SERVICES},
            **{f"stop-{each}": self._stop for each in _SERVICES},
            **{f"roll-{each}": self._roll for each in _SERVICES},
            "kill-worker": self._kill_worker,
            "stop-worker": self._stop_worker,
            "partition": self._partition,
            "loss": self._loss,
            "delay": self._delay,
            "reload": self._reload,
            "broken-edit": self._broken_edit,
            "disk-full": self._disk,
            "disk-readonly": self._disk,
            "join": self._join,
        }

    def start(self, seed: int, every_s: float, *, streams: bool) -> None:
        """every_s: on average. streams: there are faults of single streams as well."""
        self._spawn(self._follow_schedule(seed, every_s))
        if streams:
            self._spawn(self._disturb_streams())

    async def end(self) -> None:
        """No others begin; returns when all have been undone."""
        self._ended = True
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow_schedule(self, seed: int, every_s: float) -> None:
        loop = self._where.loop
        began_s = loop.time()
        for each in schedule(seed, KINDS, [*self._hosts], every_s):
            while not self._ended and loop.time() < began_s + each.at_s:
                left_s = began_s + each.at_s - loop.time()
                await asyncio.sleep(min(left_s, 1.0))
            if self._ended:
                return
            self._spawn(self._strike(each))

    async def _strike(self, disruption: Disruption) -> None:
        loop, history = self._where.loop, self._where.history
        self.counts[disruption.kind] += 1
        began_s = loop.time()
        place = len(self.occurrences)
        # Until it is over, it may be the reason of anything.
        self.occurrences.append(Occurrence(disruption, began_s, float("inf")))
        history.add("fault", disruption)
        async with self._table[disruption.kind](disruption):
            await asyncio.sleep(disruption.duration_s)
        history.add("fault over", disruption)
        self.occurrences[place] = Occurrence(disruption, began_s, loop.time())

    # ---- processes

    @contextlib.asynccontextmanager
    async def _kill(self, disruption: Disruption) -> AsyncIterator[None]:
        host = self._hosts[disruption.target]
        async with self._locks[host.name]:
            self._end_process(host)
            yield
            host.start()

    def _end_process(self, host: Host) -> None:
        process = host.process
        if process is not None:
            self._where.kill(process)
            on_kill = getattr(host, "on_kill", None)
            if on_kill is not None:
                on_kill()

    @contextlib.asynccontextmanager
    async def _stop(self, disruption: Disruption) -> AsyncIterator[None]:
        process = self._hosts[disruption.target].process
        if process is None or not process.alive:
            yield
            return
        self._where.stop(process)
        yield
        if process.alive:
            self._where.resume(process)

    @contextlib.asynccontextmanager
    async def _roll(self, disruption: Disruption) -> AsyncIterator[None]:
        host = self._hosts[disruption.target]
        async with self._locks[host.name]:
            await self._terminate(host)
            host.start()
        yield

    async def _terminate(self, host: Host) -> None:
        ending = host.terminate()
        if ending is not None:
            # It may stand still.
            await asyncio.wait({ending}, timeout=_EXIT_S)
        self._end_process(host)

    @contextlib.asynccontextmanager
    async def _join(self, disruption: Disruption) -> AsyncIterator[None]:
        async with self._locks[GUEST]:
            self._guest.start()
            yield
            await self._terminate(self._guest)

    # ---- workers

    def _pick_instance(self, disruption: Disruption) -> tuple[ExecutorHost, object] | None:
        host: ExecutorHost = self._hosts[disruption.target]  # type: ignore[assignment]
        process, executor = host.process, host.executor
        if executor is None or process is None or not process.alive or process.stands_still:
            return None
        instances = [
            each
            for each in executor.instances()
            if each.stream is not None and each.model.reports_crashes
        ]
        return (host, self._where.random.choice(instances)) if instances else None

    @contextlib.asynccontextmanager
    async def _kill_worker(self, disruption: Disruption) -> AsyncIterator[None]:
        picked = self._pick_instance(disruption)
        if picked is not None:
            host, instance = picked
            assert host.executor is not None
            assert host.process is not None
            self._where.loop.run_in(host.process, instance.crash)  # type: ignore[attr-defined]
        yield

    @contextlib.asynccontextmanager
    async def _stop_worker(self, disruption: Disruption) -> AsyncIterator[None]:
        picked = self._pick_instance(disruption)
        if picked is not None:
            host, instance = picked
            assert host.process is not None
            duration_s = disruption.duration_s
            self._where.loop.run_in(host.process, instance.pause, duration_s)  # type: ignore[attr-defined]
        yield

    # ---- the network

    def _pairs(self, disruption: Disruption, choice: float) -> list[tuple[str, str]]:
        one, other = disruption.target.split(",")
        both = [(one, other), (other, one)]
        return [both[:1], both[1:], both][int(choice * 3)]

    def _connections(self, pairs: Iterable[tuple[str, str]]) -> list[Connection]:
        wanted = set(pairs)
        return [
            each
            for each in self._where.network.connections
            if {each.up.pair, each.down.pair} & wanted
        ]

    @contextlib.asynccontextmanager
    async def _partition(self, disruption: Disruption) -> AsyncIterator[None]:
        pairs = self._pairs(disruption, disruption.choice)
        for pair in pairs:
            self._where.network.block(pair)
        yield
        for pair in pairs:
            self._where.network.unblock(pair)

    @contextlib.asynccontextmanager
    async def _loss(self, disruption: Disruption) -> AsyncIterator[None]:
        """Packets are lost, and sent again: what comes behind them waits."""
        await self._stall_for(disruption, (0.2, 1.0), (0.05, 0.6))
        yield

    @contextlib.asynccontextmanager
    async def _delay(self, disruption: Disruption) -> AsyncIterator[None]:
        await self._stall_for(disruption, (0.02, 0.2), (0.02, 0.4))
        yield

    async def _stall_for(
        self, disruption: Disruption, pauses_s: tuple[float, float], stalls_s: tuple[float, float]
    ) -> None:
        choices, loop = self._where.random, self._where.loop
        until_s = loop.time() + disruption.duration_s
        while loop.time() < until_s:
            for each in self._connections(self._pairs(disruption, 0.9)):
                each.stall(choices.uniform(*stalls_s), up=choices.random() < 0.5)
            await asyncio.sleep(choices.uniform(*pauses_s))

    # ---- files

    def _edited(self, disruption: Disruption) -> str:
        names = sorted(self._repository.versions)
        return names[int(disruption.choice * len(names))]

    @contextlib.asynccontextmanager
    async def _reload(self, disruption: Disruption) -> AsyncIterator[None]:
        async with self._locks["repository"]:
            name = self._edited(disruption)
            self._repository.edit(name)
            self._reload_model(name)
        yield

    @contextlib.asynccontextmanager
    async def _broken_edit(self, disruption: Disruption) -> AsyncIterator[None]:
        async with self._locks["repository"]:
            name = self._edited(disruption)
            self._repository.break_file(name)
            self._reload_model(name)
            yield
            self._repository.repair(name)
            self._reload_model(name)

    @contextlib.asynccontextmanager
    async def _disk(self, disruption: Disruption) -> AsyncIterator[None]:
        names = [each for each in self._hosts if each.startswith("scheduler")]
        code = errno.ENOSPC if disruption.kind == "disk-full" else errno.EROFS
        if disruption.choice < 0.2:
            code = errno.EIO
        self._disk_errors.update(dict.fromkeys(names, code))
        yield
        for name in names:
            self._disk_errors.pop(name, None)

    # ---- single streams

    async def _disturb_streams(self) -> None:
        choices, loop = self._where.random, self._where.loop
        number = 0
        while not self._ended:
            await asyncio.sleep(choices.expovariate(1 / _MEAN_PAUSE_S))
            connections = [*self._where.network.connections]
            (kind,) = choices.choices([*_OF_STREAMS], weights=[*_OF_STREAMS.values()])
            if kind == "pause":
                self._pause_instance(choices.uniform(0.01, 0.2))
                continue
            if not connections:
                continue
            connection = choices.choice(connections)
            one, other = connection.up.pair
            self.counts[kind] += 1
            number -= 1
            now_s = loop.time()
            duration_s = choices.uniform(0.005, 1.0) if kind == "stall" else 0.0
            # A break permits what a partition permits, and a stall nothing.
            how = "partition" if kind == "break" else kind
            single = Disruption(number, how, f"{one},{other}", now_s, duration_s, 0.0)
            self._where.history.add("fault", single)
            self.occurrences.append(Occurrence(single, now_s, now_s + duration_s))
            if kind == "stall":
                connection.stall(duration_s, up=choices.random() < 0.5)
            else:
                connection.break_off(lossy=choices.random() < 0.5)

    def _pause_instance(self, duration_s: float) -> None:
        """The thread of some instance gets no CPU for a while."""
        choices = self._where.random
        hosts = [each for each in self._hosts.values() if each.name.startswith("executor")]
        host: ExecutorHost = choices.choice(hosts)  # type: ignore[assignment]
        process, executor = host.process, host.executor
        if process is None or executor is None or not process.alive or process.stands_still:
            return
        if instances := executor.instances():
            self.counts["pause"] += 1
            self._where.loop.run_in(process, choices.choice(instances).pause, duration_s)


def hosts_by_name(*groups: Sequence[Host]) -> dict[str, Host]:
    """All services."""
    return {host.name: host for group in groups for host in group}
