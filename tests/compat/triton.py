"""The real tritonserver with its Python backend, started anew whenever it dies."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import triton
from benchmarks.process import Command, ServerProcess, free_ports
from tests.protocol.exchange import Server
from tests.protocol.row import Row

VENV: Final = Path(os.environ.get("NEREID_TRITON_VENV") or triton.DEFAULT_VENV)
_FLAGS: Final = ("--exit-on-error=false", "--exit-timeout-secs=1", "--model-load-thread-count=4")
START_S: Final = 90.0
# How long a death may take to show after the connection broke, on a busy machine.
_DEATH_S: Final = 5.0


class Triton:
    """One server; `deaths` names the rows that it did not survive."""

    def __init__(self, repository: Path, log: Path, flags: tuple[str, ...]) -> None:
        self._repository, self._log, self._flags = repository, log, flags
        self.deaths: list[str] = []
        self._process, self.server = self._start()

    def _start(self) -> tuple[ServerProcess, Server]:
        ports = free_ports(3)
        command = triton.command(VENV, self._repository, self._log, (ports[0], ports[1], ports[2]))
        caches = Path(command.argv[0]).parents[1] / "caches"
        argv = [*command.argv, *_FLAGS, f"--cache-directory={caches}", *self._flags]
        process = ServerProcess(Command(argv, command.log, command.environment))
        try:
            _await_live(process, ports[0])
        except BaseException:
            process.stop()
            raise
        return process, Server(*ports)

    def ask(self, row: Row) -> Any:
        """Its answers; one more try, on a new server, where it dies."""
        answers = self._try(row)
        return self._try(row) if answers is None else answers

    def _try(self, row: Row) -> Any:
        answers = row.ask(self.server)
        if "no answer" in (answers if isinstance(answers, list) else [answers]):
            until = time.monotonic() + _DEATH_S
            while self._process.alive and time.monotonic() < until:
                time.sleep(0.02)
        if self._process.alive:
            return answers
        print(f"tritonserver died over {row.name!r}: started anew", flush=True)
        self.deaths.append(row.name)
        self.stop()
        self._process, self.server = self._start()
        return None

    def stop(self) -> None:
        self.server.close()
        self._process.stop()
        triton.sweep(self.server.http_port)


def _await_live(process: ServerProcess, port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        process.require_alive()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/v2/health/live")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)
        finally:
            connection.close()
    raise TimeoutError(f"tritonserver is not live after {START_S} s:\n{process.log_tail()}")


@contextmanager
def running(repository: Path, log: Path, *flags: str) -> Iterator[Triton]:
    triton = Triton(repository, log, flags)
    try:
        yield triton
    finally:
        triton.stop()
