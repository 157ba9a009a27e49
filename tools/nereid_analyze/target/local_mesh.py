"""Starts a mesh to measure with `nereid serve`, using only its command line."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from nereid_analyze.target.served_models import TargetError
from nereid_perf.endpoint import Endpoint
from nereid_perf.server import Server, ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_perf.endpoint import Protocol

_START_S: Final = 120.0
_STOP_S: Final = 45.0
_LOOK_S: Final = 0.1
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class LocalMesh:
    """A mesh as a context; executors: number of executors; `None` lets `nereid serve` decide."""

    def __init__(
        self,
        repository: Path,
        log: Path,
        flags: Sequence[str] = (),
        executors: int | None = None,
    ) -> None:
        self._repository = repository
        self._log = log
        self._flags = tuple(flags)
        self._executors = executors
        self._process: subprocess.Popen[bytes] | None = None
        self.http_port, self.grpc_port, self.metrics_port = _free_ports(3)

    def __enter__(self) -> Self:
        """Start the mesh; raise TargetError if it does not become ready."""
        argv = [
            sys.executable,
            "-P",
            "-c",
            "from nereid.cli import main; main()",
            "serve",
            f"--model-repository={self._repository}",
            "--model-control-mode=explicit",
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            *([] if self._executors is None else [f"--executors={self._executors}"]),
            *self._flags,
        ]
        with self._log.open("ab") as output:
            # The mesh has its own process group: Ctrl-C must not end it before models are restored.
            self._process = subprocess.Popen(
                argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def endpoint(self, protocol: Protocol) -> Endpoint:
        """Return the endpoint of a protocol."""
        port = self.http_port if protocol == "http" else self.grpc_port
        return Endpoint(protocol, f"127.0.0.1:{port}")

    @property
    def metrics_url(self) -> str:
        """URL of the metrics page."""
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    def stop(self) -> None:
        """End the mesh, and all processes that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def resident_bytes(self) -> int:
        """Return the resident memory of the mesh's processes, or 0 if the system does not say."""
        if self._process is None:
            return 0
        return sum(map(_resident, _descendants(self._process.pid)))

    def _await_ready(self) -> None:
        assert self._process is not None, "it was just started"
        server = Server(self.endpoint("http"), timeout_s=5.0)
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise TargetError(f"nereid serve ended; its log is {self._log}:\n{self._tail()}")
            with contextlib.suppress(ServerError):
                if server.is_ready():
                    return
            time.sleep(_LOOK_S)
        raise TargetError(f"nereid serve is not ready after {_START_S:g} s; its log is {self._log}")

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-5:])


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as exits:
        sockets = [exits.enter_context(socket.socket()) for _ in range(number)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]


def _descendants(pid: int) -> list[int]:
    pids = [pid]
    for process in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{process}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0
