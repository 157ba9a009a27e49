"""Starts fork servers, and processes of confined models by them."""

from __future__ import annotations

import atexit
import contextlib
import logging
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid_executor.backends.native.fork_server import NUMBER
from nereid_executor.backends.python.supervisor.worker_output import WORKER_OUTPUT
from nereid_executor.backends.python.supervisor.worker_process import (
    SOURCES,
    start_process,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_log = logging.getLogger(__name__)

_PROGRAM: Final = str(Path(__file__).parent)
# A server may import its backend meanwhile.
_START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 5.0


class ForkError(OSError):
    """The system has refused another process."""


class ForkedProcess:
    """A child of a fork server, with the methods of subprocess.Popen that workers need."""

    def __init__(self, control: socket.socket) -> None:
        """Wait for the process. Raise ForkError, or another OSError if the server has failed."""
        self._control = control
        self._code: int | None = None
        control.settimeout(_START_TIMEOUT_S)
        started = control.recv(NUMBER.size)
        if not started:
            raise ConnectionResetError("the fork server has ended")
        self.pid: int = NUMBER.unpack(started)[0]
        if self.pid < 0:
            raise ForkError(-self.pid, os.strerror(-self.pid))

    def poll(self) -> int | None:
        """Return the return code, negative for a signal; `None` if the process has not ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the code; raise subprocess.TimeoutExpired after timeout."""
        if self._code is None:
            self._control.settimeout(timeout)
            try:
                ended = self._control.recv(NUMBER.size)
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(_PROGRAM, timeout or 0) from None
            # Processes end with their server.
            self._code = NUMBER.unpack(ended)[0] if ended else -signal.SIGKILL
            # The server kills what the process has started, and frees its id.
            self._control.close()
        return self._code


class ForkServers:
    """The fork servers of this process, by their backends. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[str, _Server] = {}

    def start(self, backend: str, environ: Mapping[str, str]) -> None:
        """Start a backend's server, unless there is one; do not wait for it.

        environ: the variables of confined processes.
        """
        self._server(backend, environ)

    def fork(
        self,
        backend: str,
        policy: bytes,
        environ: Mapping[str, str],
        descriptors: tuple[int, ...],
        output: int,
    ) -> ForkedProcess:
        """Start a process that is confined by this policy; raise OSError if that fails.

        descriptors: the worker's socket and memory.
        """
        server = self._server(backend, environ)
        try:
            return server.fork(policy, environ, (*descriptors, output))
        except ForkError:
            raise
        except OSError:
            # It was killed, or does not respond.
            self._end(backend, server)
        return self._server(backend, environ).fork(policy, environ, (*descriptors, output))

    def close(self) -> None:
        """End all servers and their processes."""
        with self._lock:
            servers, self._servers = [*self._servers.values()], {}
        for server in servers:
            server.close()

    def _server(self, backend: str, environ: Mapping[str, str]) -> _Server:
        with self._lock:
            server = self._servers.get(backend)
            if server is None:
                server = self._servers[backend] = _Server(backend, environ)
            return server

    def _end(self, backend: str, server: _Server) -> None:
        with self._lock:
            if self._servers.get(backend) is server:
                del self._servers[backend]
        _log.error("the fork server of backend '%s' has failed; starting another", backend)
        server.kill()


class _Server:
    def __init__(self, backend: str, environ: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(_START_TIMEOUT_S)
        descriptor = theirs.fileno()
        command = [sys.executable, _PROGRAM, str(descriptor), backend, SOURCES]
        # These are the directories of one worker.
        environ = {name: text for name, text in environ.items() if name not in {"HOME", "TMPDIR"}}
        with theirs, WORKER_OUTPUT.pipe(f"{backend} fork server") as output:
            self._process = start_process(command, environ, (descriptor,), output)

    def fork(
        self, policy: bytes, environ: Mapping[str, str], descriptors: Sequence[int]
    ) -> ForkedProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                message = marshal.dumps((policy, dict(environ)))
                socket.send_fds(self._requests, [message], [theirs.fileno(), *descriptors])
            return ForkedProcess(ours)
        except BaseException:
            ours.close()
            raise

    def kill(self) -> None:
        self._process.kill()
        self.close()

    def close(self) -> None:
        self._requests.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


FORK_SERVERS: Final = ForkServers()
atexit.register(FORK_SERVERS.close)
