"""Starts `nereid serve` as a user does and finds its processes."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.mesh.poison import poisoned

_EXECUTOR = "nereid_executor"

START_S = 60.0
STOP_S = 45.0


def _own_ports() -> Iterator[int]:
    """Each of pytest's processes has ports of its own, and gives none of them out twice.

    The system gives those from 32768 on to whoever connects or asks for any port.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports = range(10_000 + worker, 32_000, workers)
    first = random.randrange(len(ports))
    return itertools.cycle((*ports[first:], *ports[:first]))


_PORTS = _own_ports()


def free_port() -> int:
    """A port that will still be free when a process listens there a little later."""
    while True:
        port = next(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port


def until(condition: Callable[[], object], what: str, limit_s: float = START_S) -> None:
    """Wait for a state of another process that does not announce its changes."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s} s for {what}")
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, also if its parent has not been told."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def ask(
    address: str,
    path: str,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, bytes]:
    """Status and body of one HTTP request on a connection of its own."""
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class Mesh:
    """A running `nereid serve`."""

    def __init__(self, repository: Path | str, log: Path, *flags: str) -> None:
        self.http_port, self.grpc_port, self.metrics_port = free_port(), free_port(), free_port()
        self.http, self.grpc = f"127.0.0.1:{self.http_port}", f"127.0.0.1:{self.grpc_port}"
        self.log, self.flags = log, flags
        argv = [
            str(Path(sys.executable).with_name("nereid")),
            "serve",
            f"--model-repository={repository}",
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            *flags,
        ]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                argv, stdout=output, stderr=subprocess.STDOUT, env=poisoned(os.environ)
            )

    def get(self, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
        return ask(self.http, path, method, body)

    def metrics(self) -> str:
        """The metrics page."""
        status, page = ask(f"127.0.0.1:{self.metrics_port}", "/metrics")
        assert status == http.HTTPStatus.OK
        return page.decode()

    def index(self) -> dict[str, dict[str, Any]]:
        """Each model's entry, of several versions the last one's; raises HTTPException."""
        return {entry["name"]: entry for entry in self.versions()}

    def versions(self) -> list[dict[str, Any]]:
        """The entries of all versions.

        Raises:
            HTTPException: a gateway of its own has no scheduler yet, or no longer.
        """
        status, body = self.get("/v2/repository/index", "POST")
        if status != http.HTTPStatus.OK:
            raise http.client.HTTPException(body.decode())
        entries: list[dict[str, Any]] = json.loads(body)
        return entries

    def counts(self, model: str) -> dict[str, int]:
        """Return a model's counts by name, from its statistics."""
        _, reply = self.get(f"/v2/models/{model}/stats")
        (stats,) = json.loads(reply)["model_stats"]
        counts = {
            name: int(each.get("count", 0)) for name, each in stats["inference_stats"].items()
        }
        for name in ("execution_count", "inference_count"):
            counts[name] = int(stats.get(name, 0))
        return counts

    def await_settled(self, instances: int = 1, limit_s: float = START_S) -> None:
        """Until no model is loading and so many executors serve."""

        def settled() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"the mesh ended:\n{self.log.read_text()}")
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                states = [entry.get("state") for entry in self.versions()]
                return bool(states) and "LOADING" not in states
            return False

        until(settled, f"the mesh to settle; its log: {self.log}", limit_s)
        until(lambda: len(self.children(_EXECUTOR)) >= instances, "the executors")

    def greeting(self) -> str:
        """Wait for the first request that the mesh offers to try, and return its log until then."""
        offer = re.compile(r"A first request to try:\n\n.*\n")
        until(lambda: offer.search(self.log.read_text()), "the greeting")
        return self.log.read_text()

    def children(self, module: str) -> list[int]:
        """Process ids of the mesh's children that run this module."""
        pids = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                words = (status.parent / "cmdline").read_bytes().split(b"\0")
                if parent == self.process.pid and module.encode() in words:
                    pids.append(int(status.parent.name))
        return sorted(pids)

    def kill(self, module: str) -> int:
        """SIGKILL one child that runs this module; its process id."""
        pid = self.children(module)[0]
        os.kill(pid, signal.SIGKILL)
        return pid

    @contextlib.contextmanager
    def held(self, module: str) -> Iterator[None]:
        """The children that run this module do nothing meanwhile."""
        pids = self.children(module)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            # A thread at work stops a little later.
            until(lambda: all(map(_is_stopped, pids)), "it to stop")
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def terminate(self) -> int:
        """SIGTERM, as a container engine would; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)


def _is_stopped(pid: int) -> bool:
    """Return whether all threads of a process are stopped; one that has ended is ignored."""
    for each in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            if ") T " not in each.read_text():
                return False
    return True


@contextlib.contextmanager
def running(
    repository: Path | str, log: Path, *flags: str, executors: int = 1, start_s: float = START_S
) -> Iterator[Mesh]:
    mesh = Mesh(repository, log, f"--executors={executors}", *flags)
    try:
        mesh.await_settled(executors, start_s)
        yield mesh
    finally:
        if mesh.process.poll() is None:
            mesh.process.send_signal(signal.SIGTERM)
            try:
                mesh.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                mesh.process.kill()
                mesh.process.wait()
                raise
