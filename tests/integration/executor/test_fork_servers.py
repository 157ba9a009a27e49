"""Fork servers: which processes may fork, and what the executor learns of forked processes."""

from __future__ import annotations

import contextlib
import errno
import marshal
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid_executor.backends.native.fork_server import ForkServer
from nereid_executor.backends.native.forked_process import ForkedProcess, ForkError, ForkServers
from nereid_executor.backends.python.sandbox.policy import WorkerSandbox, confined_environ
from nereid_executor.settings import SandboxSettings
from tests.support.executor.instances import instance


@pytest.fixture
def servers() -> Iterator[ForkServers]:
    servers = ForkServers()
    yield servers
    servers.close()


def fork(servers: ForkServers, tmp_path: Path) -> tuple[ForkedProcess, socket.socket]:
    """Return a forked process, which waits for the model to load, and its socket."""
    sandbox = WorkerSandbox()
    sandbox.configure(SandboxSettings(sandbox_models=True))
    confinement = sandbox.confinement_of(instance("").config, tmp_path, sys.executable)
    assert confinement is not None
    ours, theirs = socket.socketpair()
    with (
        contextlib.ExitStack() as stack,
        theirs,
        tempfile.TemporaryFile() as memory,
        tempfile.TemporaryFile() as output,
    ):
        stack.callback(ours.close)
        os.ftruncate(memory.fileno(), mmap.PAGESIZE)
        process = servers.fork(
            "identity",
            confinement.policy([], tmp_path),
            confined_environ(os.environ, ()),
            (theirs.fileno(), memory.fileno()),
            output.fileno(),
        )
        stack.pop_all()
    return process, ours


def test_a_process_that_ends(servers: ForkServers, tmp_path: Path) -> None:
    process, connection = fork(servers, tmp_path)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.001)
    connection.close()
    # The executor's end of the socket was closed.
    assert process.wait() == process.poll() == 1


def test_a_process_that_is_killed(servers: ForkServers, tmp_path: Path) -> None:
    process, connection = fork(servers, tmp_path)
    with connection:
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_a_server_that_is_killed_ends_its_processes(servers: ForkServers, tmp_path: Path) -> None:
    first, connection = fork(servers, tmp_path)
    with connection:
        ended = os.pidfd_open(first.pid)
        server = int(Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(server, signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
        assert select.select([ended], [], [], 30)[0]
        os.close(ended)
    second, connection = fork(servers, tmp_path)
    with connection:
        assert second.poll() is None
    second.wait()


def test_a_process_that_the_system_refuses() -> None:
    def refuse() -> int:
        raise OSError(errno.EAGAIN, "too many processes")

    with contextlib.ExitStack() as stack:
        requests, served, ours, control = (
            stack.enter_context(each)
            for _ in range(2)
            for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        server = threading.Thread(target=ForkServer(served, refuse).serve)
        server.start()
        message = marshal.dumps((b"", {}))
        for _ in range(2):
            socket.send_fds(requests, [message], [control.fileno(), *[ours.fileno()] * 3])
            with pytest.raises(ForkError, match="Resource temporarily unavailable"):
                ForkedProcess(ours)
        requests.close()
        server.join()


def test_processes_end_with_their_executor(servers: ForkServers, tmp_path: Path) -> None:
    process, connection = fork(servers, tmp_path)
    with connection:
        ended = os.pidfd_open(process.pid)
        servers.close()
        process.wait()
        assert select.select([ended], [], [], 30)[0]
        os.close(ended)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("pass", True),
        # OpenBLAS ends its threads before a fork.
        ("import numpy as np; a = np.ones((500, 500)); a @ a", True),
        (
            "import threading as t; t.Thread(target=t.Event().wait, daemon=True).start()",
            False,
        ),
        ("file = open('/dev/full')", False),
    ],
)
def test_processes_that_may_fork(before: str, expected: bool) -> None:
    module = "nereid_executor.backends.native.fork_server"
    program = f"{before}; from {module} import may_fork; print(may_fork(), flush=True)"
    program += "; import os; os._exit(0)"
    process = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=True
    )
    assert process.stdout.decode().strip() == str(expected)
