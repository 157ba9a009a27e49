"""What makes each kind of fault happen, and undoes it.

A nemesis is an asynchronous context manager: the fault is there inside, and undone behind it,
whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

from tests.support.hostile.attack import Target
from tests.support.hostile.attacks import ATTACKS, managed_ports
from tests.torment.disruptions import KINDS, SERVICES, Disruption
from tests.torment.hosts import HOSTILE_ADDRESS, run
from tests.torment.repository import Repository
from tests.torment.services import Service, Services

Nemesis = Callable[[Disruption], AbstractAsyncContextManager[None]]

# Seconds by which clocks are set back or forth.
_JUMPS_S: Final = (-86_400, -3_600, -5, 5, 3_600, 86_400)
_NETWORK: Final = ("partition", "loss", "delay")
_DISK: Final = ("disk-full", "disk-readonly")
_FAKETIME: Final = "*/faketime/libfaketimeMT.so.1"
_FILLED: Final = 16 << 20


def faketime_library() -> str | None:
    return next(map(str, Path("/usr/lib").glob(_FAKETIME)), None)


def _has_tool(*argv: str) -> bool:
    with contextlib.suppress(OSError):
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    return False


def missing(kinds: list[str], *, isolated: bool) -> dict[str, str]:
    """The kinds that this machine cannot have, with the reason."""
    found = {}
    for kind in kinds:
        if kind in (*_NETWORK, *_DISK) and not isolated:
            found[kind] = "no namespaces can be made here"
        elif kind in {"partition", "loss"} and not _has_tool("iptables", "--version"):
            found[kind] = "there is no iptables"
        elif kind == "delay" and not _has_tool("tc", "-V"):
            found[kind] = "there is no tc"
        elif kind == "clock" and not faketime_library():
            found[kind] = "there is no libfaketime"
    return found


class Nemeses:
    """One for each kind of fault, of one mesh."""

    def __init__(
        self,
        services: Services,
        repository: Repository,
        directory: Path,
        now_s: Callable[[], float],
    ) -> None:
        self._services, self._repository, self._directory = services, repository, directory
        self._now_s = now_s
        # By model and version.
        self.written_s: dict[str, dict[int, float]] = {}
        # What services did that they should not, beside what clients saw.
        self.complaints: list[str] = []
        # What became of hostile clients, edits and the like.
        self.notes: list[str] = []
        self._repository_lock = asyncio.Lock()
        # By host: the way from it is slow in one manner at a time.
        self._delay_locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._guest: Service | None = None
        self._table: dict[str, Nemesis] = {
            **{f"kill-{each}": self._kill for each in SERVICES},
            **{f"stop-{each}": self._stop for each in SERVICES},
            **{f"roll-{each}": self._roll for each in SERVICES},
            "kill-worker": self._kill_worker,
            "stop-worker": self._stop_worker,
            "partition": self._partition,
            "loss": self._loss,
            "delay": self._delay,
            "clock": self._clock,
            "reload": self._reload,
            "broken-edit": self._broken_edit,
            "disk-full": self._disk_full,
            "disk-readonly": self._disk_readonly,
            "join": self._join,
            "hostile": self._hostile,
        }
        assert set(KINDS) <= set(self._table)

    def prepare_clocks(self) -> None:
        """For services that are started from then on."""
        library = faketime_library()
        assert library
        for service in self._services.by_name.values():
            if service.name == "redis":
                continue
            self._clock_file(service).write_text("+0\n")
            service.environment |= {
                "LD_PRELOAD": library,
                "FAKETIME_TIMESTAMP_FILE": str(self._clock_file(service)),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }

    async def strike(self, disruption: Disruption) -> None:
        """Have the fault for its duration."""
        async with self._table[disruption.kind](disruption):
            await asyncio.sleep(disruption.duration_s)

    def _service(self, disruption: Disruption) -> Service:
        return self._services.by_name[disruption.target]

    # Processes

    @asynccontextmanager
    async def _kill(self, disruption: Disruption) -> AsyncIterator[None]:
        service = self._service(disruption)
        async with service.lock:
            service.kill()
            try:
                yield
            finally:
                service.start()

    @asynccontextmanager
    async def _stop(self, disruption: Disruption) -> AsyncIterator[None]:
        service = self._service(disruption)
        # Another fault may end it meanwhile: SIGKILL ends stopped processes.
        service.stop()
        try:
            yield
        finally:
            service.resume()

    @asynccontextmanager
    async def _roll(self, disruption: Disruption) -> AsyncIterator[None]:
        service = self._service(disruption)
        async with service.lock:
            await self.terminate(service)
            service.upgrade()
            service.start()
            yield

    async def terminate(self, service: Service) -> None:
        """SIGTERM, and a complaint if it does not end well."""
        service.resume_for_good()
        status = await service.terminate()
        if status:
            self.complaints.append(f"{service.name} ended with status {status} after SIGTERM")
        elif status is None:
            self.complaints.append(f"{service.name} did not end after SIGTERM")

    def _worker(self, disruption: Disruption) -> int | None:
        workers = sorted(self._service(disruption).workers())
        return workers[int(disruption.choice * len(workers))] if workers else None

    @asynccontextmanager
    async def _kill_worker(self, disruption: Disruption) -> AsyncIterator[None]:
        _signal(self._worker(disruption), signal.SIGKILL)
        yield

    @asynccontextmanager
    async def _stop_worker(self, disruption: Disruption) -> AsyncIterator[None]:
        pid = self._worker(disruption)
        _signal(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(pid, signal.SIGCONT)

    @asynccontextmanager
    async def _join(self, disruption: Disruption) -> AsyncIterator[None]:
        """An executor more for a while; it drains."""
        guest = self._guest or self._services.guest("executor-guest")
        self._guest = guest
        async with guest.lock:
            guest.start()
            try:
                yield
            finally:
                await self.terminate(guest)

    # The network

    @asynccontextmanager
    async def _partition(self, disruption: Disruption) -> AsyncIterator[None]:
        """Nothing gets through, in one direction or in both."""
        one, other = disruption.target.split(",")
        directions = [(one, other), (other, one), None][int(disruption.choice * 3)]
        pairs = [directions] if directions else [(one, other), (other, one)]
        async with contextlib.AsyncExitStack() as stack:
            for source, destination in pairs:
                stack.enter_context(self._dropped(source, destination))
            yield

    @asynccontextmanager
    async def _loss(self, disruption: Disruption) -> AsyncIterator[None]:
        """One packet in 4 to 25, in both directions."""
        one, other = disruption.target.split(",")
        random_ = ("-m", "statistic", "--mode", "random", "--probability")
        probability = f"{0.04 + 0.21 * disruption.choice:.3f}"
        with (
            self._dropped(one, other, *random_, probability),
            self._dropped(other, one, *random_, probability),
        ):
            yield

    @contextlib.contextmanager
    def _dropped(self, source: str, destination: str, *match: str) -> Iterator[None]:
        """What one host sends to another does not arrive there."""
        hosts = self._services.hosts.hosts
        rule = ("INPUT", "-s", hosts[source].address, *match, "-j", "DROP")
        command = hosts[destination].command
        run(*command("iptables", "-w", "-A", *rule))
        try:
            yield
        finally:
            run(*command("iptables", "-w", "-D", *rule))

    @asynccontextmanager
    async def _delay(self, disruption: Disruption) -> AsyncIterator[None]:
        """A slow way from the first to everybody: by netem, or by a rate where there is none."""
        one, _ = disruption.target.split(",")
        host = self._services.hosts.hosts[one]
        delay = ("netem", "delay", f"{int(20 + 400 * disruption.choice)}ms", "20ms")
        # 10 to 50 kB/s, and what has queued for longer than 2 s is dropped.
        rate = f"{int(80 + 320 * disruption.choice)}kbit"
        slow = ("tbf", "rate", rate, "burst", "4kb", "latency", "2s")
        discipline = ("tc", "qdisc", "add", "dev", "eth0", "root")
        async with self._delay_locks[one]:
            try:
                run(*host.command(*discipline, *delay))
            except subprocess.CalledProcessError:
                run(*host.command(*discipline, *slow))
            try:
                yield
            finally:
                run(*host.command("tc", "qdisc", "del", "dev", "eth0", "root"))

    # Clocks

    def _clock_file(self, service: Service) -> Path:
        return self._directory / f"clock-{service.name}"

    @asynccontextmanager
    async def _clock(self, disruption: Disruption) -> AsyncIterator[None]:
        file = self._clock_file(self._service(disruption))
        try:
            file.write_text(f"{_JUMPS_S[int(disruption.choice * len(_JUMPS_S))]:+d}\n")
            yield
        finally:
            file.write_text("+0\n")

    # Files

    def _edit(self, name: str) -> None:
        version = self._repository.versions[name] + 1
        times = self.written_s.setdefault(name, {})
        times[version] = self._now_s()
        try:
            self._repository.edit(name)
        except OSError as error:
            del times[version]
            self.notes.append(f"{name} could not be edited: {error.strerror}")

    def _edited(self, disruption: Disruption) -> str:
        names = sorted(self._repository.versions)
        return names[int(disruption.choice * len(names))]

    @asynccontextmanager
    async def _reload(self, disruption: Disruption) -> AsyncIterator[None]:
        async with self._repository_lock:
            self._edit(self._edited(disruption))
        yield

    @asynccontextmanager
    async def _broken_edit(self, disruption: Disruption) -> AsyncIterator[None]:
        """A file that cannot be loaded, and then the last good one again."""
        name = self._edited(disruption)
        async with self._repository_lock:
            self._repository.break_file(name)
            try:
                yield
            finally:
                self._repository.repair(name)

    @asynccontextmanager
    async def _disk_full(self, disruption: Disruption) -> AsyncIterator[None]:
        filler = self._repository.directory.parent / "filler"
        async with self._repository_lock:
            try:
                with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * _FILLED)
                self._edit(self._edited(disruption))
                yield
            finally:
                filler.unlink()

    @asynccontextmanager
    async def _disk_readonly(self, disruption: Disruption) -> AsyncIterator[None]:
        place = str(self._repository.directory.parent)
        async with self._repository_lock:
            try:
                run("mount", "-o", "remount,ro", place)
                self._edit(self._edited(disruption))
                yield
            finally:
                run("mount", "-o", "remount,rw", place)

    # Clients

    @asynccontextmanager
    async def _hostile(self, disruption: Disruption) -> AsyncIterator[None]:
        which = int(disruption.target.rpartition("-")[2])
        # Its gateways have no ports for SageMaker and Vertex AI.
        attacks = [each for each in ATTACKS if not (each.nightly or each in managed_ports.ATTACKS)]
        attack = attacks[int(disruption.choice * len(attacks))]
        source = HOSTILE_ADDRESS if self._services.hosts.isolated else "127.0.0.2"
        services = self._services
        ports = (services.http[which], services.grpc[which], services.metrics[which])
        target = Target(*ports, source)
        try:
            outcome = await asyncio.to_thread(attack.client, target)
        except OSError as error:
            outcome = repr(error)
        self.notes.append(f"attack {attack.name!r}: {outcome}")
        yield


def _signal(pid: int | None, number: signal.Signals) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
