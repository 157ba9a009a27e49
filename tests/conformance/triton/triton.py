"""The real tritonserver with its Python backend, started anew whenever it dies."""

from __future__ import annotations

import http
import http.client
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.failure import BenchError
from benchmarks.peers import triton
from benchmarks.process import Command, ServerProcess
from tests.conformance.exchange import Server
from tests.conformance.row import Row
from tests.support.mesh.mesh import ask, free_port, until

VENV: Final = Path(os.environ.get("NEREID_TRITON_VENV") or triton.DEFAULT_VENV)
# Directory of the backend onnxruntime in C++, built for this Triton: the wheel has none.
ONNX_BACKEND: Final = os.environ.get("NEREID_TRITON_ONNX_BACKEND", "")
_FLAGS: Final = (
    *("--exit-on-error=false", "--exit-timeout-secs=1", "--model-load-thread-count=4"),
    # Its models' processes start as slowly as the machine is busy.
    "--backend-config=python,stub-timeout-seconds=120",
)
START_S: Final = 180.0
_STARTS: Final = 3
# A server that crashes more often than this has nothing more to show.
_LIVES: Final = 30


class Triton:
    """One server; `deaths` names the rows that it did not survive.

    Every call may raise BenchError: it does not start, or dies all the time.
    """

    def __init__(self, repository: Path, log: Path, flags: tuple[str, ...]) -> None:
        self._repository, self._log, self._flags = repository, log, flags
        self.deaths: list[str] = []
        self._gone: BenchError | None = None
        self._process, self.server = self._start()

    def _start(self) -> tuple[ServerProcess, Server]:
        reported = ""
        for _ in range(_STARTS):
            try:
                return self._start_once()
            except (BenchError, OSError) as error:
                reported = f"tritonserver does not start: {error}"
                print(reported, flush=True)
        self._gone = BenchError(reported)
        raise self._gone

    def _start_once(self) -> tuple[ServerProcess, Server]:
        ports = free_port(), free_port(), free_port()
        command = triton.command(VENV, self._repository, self._log, ports)
        caches = Path(command.argv[0]).parents[1] / "caches"
        argv = [*command.argv, *_FLAGS, f"--cache-directory={caches}", *self._flags]
        process = ServerProcess(Command(argv, command.log, command.environment))
        try:
            _await_models(process, ports[0])
        except BaseException:
            process.stop()
            triton.sweep(ports[0])
            raise
        return process, Server(*ports, process)

    def ask(self, row: Row) -> Any:
        """Its responses; one more try, on a new server, where it dies."""
        responses = self._try(row)
        return self._try(row) if responses is None else responses

    def _try(self, row: Row) -> Any:
        if self._gone:
            raise self._gone
        responses = row.ask(self.server)
        if row.ends_server:
            return responses
        silent = "no answer" in (responses if isinstance(responses, list) else [responses])
        if self._process.alive and not (silent and not self._responses()):
            return responses
        print(f"tritonserver died over {row.name!r}: started anew", flush=True)
        self.deaths.append(row.name)
        if len(self.deaths) > _LIVES:
            self._gone = BenchError(f"tritonserver died {len(self.deaths)} times")
            raise self._gone
        self.renew()
        return None

    def _responses(self) -> bool:
        """Whether it responds at all; one whose death does not show yet does not."""
        address = f"127.0.0.1:{self.server.http_port}"
        try:
            return ask(address, "/v2/health/live")[0] == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    @property
    def alive(self) -> bool:
        return self._process.alive

    def renew(self) -> None:
        """Another server, which knows nothing of what this one was asked."""
        self.stop()
        self._process, self.server = self._start()

    def stop(self) -> None:
        self.server.close()
        self._process.stop()
        triton.sweep(self.server.http_port)


def with_onnx_backend(directory: Path) -> str:
    """Return the flag for a directory of both backends, which is made."""
    command = triton.command(VENV, directory, directory, (0, 0, 0))
    backends = Path(command.argv[0]).parents[1] / "backends"
    directory.mkdir()
    for backend in (backends / "python", Path(ONNX_BACKEND)):
        (directory / backend.name).symlink_to(backend.resolve(), target_is_directory=True)
    return f"--backend-directory={directory}"


def _await_models(process: ServerProcess, port: int) -> None:
    def has_loaded() -> bool:
        process.require_alive()
        try:
            status, body = ask(f"127.0.0.1:{port}", "/v2/repository/index", "POST")
        except (OSError, http.client.HTTPException):
            return False
        if status != http.HTTPStatus.OK or not process.alive:
            return False
        if not any(each.get("state") == "READY" for each in json.loads(body)):
            raise BenchError(f"tritonserver loads no model:\n{process.log_tail()}")
        return True

    try:
        until(has_loaded, "tritonserver to load its models", START_S)
    except TimeoutError as error:
        error.add_note(process.log_tail())
        raise


@contextmanager
def running(repository: Path, log: Path, *flags: str) -> Iterator[Triton]:
    triton = Triton(repository, log, flags)
    try:
        yield triton
    finally:
        triton.stop()
