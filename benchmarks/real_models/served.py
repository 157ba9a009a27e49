"""A server with a model, and clients, each of which sends one request at a time."""

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import native, nereid, triton
from benchmarks.process import Command, ServerProcess, free_ports
from benchmarks.real_models.subject import Subject
from benchmarks.real_models.used import Used

# Processes of Nereid that do not run models.
_OTHERS = (
    "nereid",
    "nereid_mesh.serve.joined",
    "nereid_gateway",
    "nereid_scheduler",
)


def command(
    peer: str, repository: Path, log: Path, flags: Sequence[str], triton_venv: Path
) -> tuple[int, Command]:
    """Return the HTTP port, and the command that starts the server."""
    first, second, third = free_ports(3)
    ports = first, second, third
    if peer == native.NAME:
        return first, native.command(repository, log, ports)
    if peer == "triton":
        return first, triton.command(triton_venv, repository, log, ports)
    return first, nereid.command(repository, log, ports, flags)


class Served:
    """A peer's server with the model of a subject."""

    def __init__(
        self, peer: str, subject: Subject, work: Path, flags: Sequence[str], triton_venv: Path
    ) -> None:
        self._subject = subject
        repository = work / f"{subject.name}-{peer}"
        subject.write(repository, peer)
        log = work / f"{subject.name}-{peer}.log"
        self._port, started = command(peer, repository, log, flags, triton_venv)
        self._server = ServerProcess(started)
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    def _await_ready(self) -> None:
        url = f"http://127.0.0.1:{self._port}/v2/models/{self._subject.name}/ready"
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except OSError:
                self._server.require_alive()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def run(self, concurrency: int, seconds: float) -> Used:
        """Run closed loops, each on its own connection."""
        clients = [
            _Client(self._port, self._subject.requests(number)) for number in range(concurrency)
        ]
        runs, (model_cpu_s, cpu_s) = self._executions(), self._cpu_s()
        began = time.perf_counter()
        for client in clients:
            client.start()
        time.sleep(seconds)
        for client in clients:
            client.stopping = True
        for client in clients:
            client.join()
        taken_s = time.perf_counter() - began
        if failed := [client.error for client in clients if client.error is not None]:
            raise failed[0]
        inferences = sum(client.responses for client in clients)
        model_after_s, after_s = self._cpu_s()
        runs = self._executions() - runs
        return Used(inferences, taken_s, model_after_s - model_cpu_s, after_s - cpu_s, runs)

    def close(self) -> None:
        """End the server."""
        self._server.stop()
        triton.sweep(self._port)

    def _executions(self) -> int:
        url = f"http://127.0.0.1:{self._port}/v2/models/{self._subject.batched}/stats"
        with urllib.request.urlopen(url, timeout=30) as response:
            return int(json.load(response)["model_stats"][0]["execution_count"])

    def _cpu_s(self) -> tuple[float, float]:
        """Return the CPU seconds of the processes that run models, and of all processes.

        They are exact to the nanosecond, where /proc/<pid>/stat counts ticks of 10 ms.
        """
        models_ns = all_ns = 0
        for pid, name in self._server.processes().items():
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                used_ns = int(path.read_text().split()[0])
                all_ns += used_ns
                models_ns += used_ns * (name not in _OTHERS)
        return models_ns / 1e9, all_ns / 1e9


class _Client(threading.Thread):
    """Client with one connection and one request at a time."""

    def __init__(self, port: int, requests: Iterator[bytes]) -> None:
        super().__init__(daemon=True)
        self._requests = requests
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stopping = False
        self.responses = 0
        self.error: Exception | None = None

    def run(self) -> None:
        """Send requests until the end is signalled."""
        try:
            with self._connection, self._connection.makefile("rb") as responses:
                for request in self._requests:
                    self._connection.sendall(request)
                    _read_response(responses)
                    self.responses += 1
                    if self.stopping:
                        return
        except Exception as error:
            self.error = error


def _read_response(stream: Any) -> None:
    status, length = stream.readline(), 0
    while (line := stream.readline().lower()) not in (b"\r\n", b""):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    body = stream.read(length)
    if not status.startswith(b"HTTP/1.1 200") or len(body) < length:
        raise ConnectionError((status + body).decode(errors="replace"))
