"""A process that has imported a backend, and forks the processes of its confined models.

A fork takes milliseconds; an interpreter's start and imports take a quarter of a second and more.
The server has one thread and loads no model, so its children are like new processes.
"""

from __future__ import annotations

import array
import contextlib
import errno
import gc
import marshal
import os
import resource
import select
import signal
import socket
import stat
import sys
import traceback
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

from nereid_executor.backends.native.host import run_host
from nereid_executor.backends.python.sandbox import launcher
from nereid_executor.backends.python.worker_site.nereid_worker.runtime import process
from nereid_executor.backends.registry import BackendRegistry

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

# The messages of a control socket: the worker's process id, or a negative errno; its return code.
NUMBER: Final = Struct("<i")
# A request's descriptors: the control socket, the worker's socket, its memory, its output.
_DESCRIPTORS: Final = 4
_MAX_REQUEST: Final = 1 << 20
_WITHOUT_IMPORT: Final = ""


def main() -> None:
    """Import the backend and serve, until the executor closes the socket."""
    descriptor, backend = int(sys.argv[1]), sys.argv[2]
    if backend != _WITHOUT_IMPORT:
        BackendRegistry().preload([backend])
        if not may_fork():
            # The children import the backend themselves.
            sys.argv[2] = _WITHOUT_IMPORT
            os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - it is no shell's text
    # Each process takes two descriptors here.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # The collector would write to memory that the children share.
    gc.collect()
    gc.freeze()
    sys.argv = [""]
    ForkServer(socket.socket(fileno=descriptor)).serve()


def may_fork() -> bool:
    """Return whether a child of this process would be complete.

    A child has neither the other threads, which may hold locks, nor a context on a GPU.
    """
    # At a fork, OpenBLAS ends its threads, and starts them when it needs them.
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    threads = [*Path("/proc/self/task").iterdir()]
    # The first are input and output.
    opened = [file for file in Path("/proc/self/fd").iterdir() if int(file.name) > 2]
    return len(threads) == 1 and not any(_is_device(file) for file in opened)


def _is_device(file: Path) -> bool:
    try:
        return stat.S_ISCHR(file.stat().st_mode)
    except OSError:
        return False


class ForkServer:
    """Forks a process for each request on a socket, and reports how it ended.

    A process stays a zombie until the executor closes its control socket, so that nothing else gets
    its id before.
    """

    def __init__(self, requests: socket.socket, fork: Callable[[], int] = os.fork) -> None:
        self._requests = requests
        self._fork = fork
        self._pid = os.getpid()
        self._poll = select.poll()
        self._poll.register(requests, select.POLLIN)
        # Keys: descriptors of control sockets, and of processes (pidfd).
        self._by_control: dict[int, _Child] = {}
        self._by_process: dict[int, _Child] = {}

    def serve(self) -> None:
        """Serve until the executor closes the socket, then kill all processes."""
        is_open = True
        while is_open:
            # One event at a time: it may close the descriptors of others.
            descriptor, _ = self._poll.poll()[0]
            if descriptor == self._requests.fileno():
                is_open = self._serve_request()
            elif descriptor in self._by_process:
                self._poll.unregister(descriptor)
                self._by_process[descriptor].report_end()
            else:
                self._remove(self._by_control[descriptor])
        for child in [*self._by_control.values()]:
            self._remove(child)

    def _serve_request(self) -> bool:
        """Fork a process; return False if the executor has closed the socket."""
        data, descriptors = _receive(self._requests)
        if not data:
            return False
        policy, environ = marshal.loads(data)  # noqa: S302 - the executor wrote it
        control, *others = descriptors
        try:
            pid = self._fork()
        except OSError as error:
            with socket.socket(fileno=control) as refused:
                refused.send(NUMBER.pack(-(error.errno or errno.EAGAIN)))
            pid = -1
        if pid == 0:
            self._become_worker(policy, environ, descriptors)
        for descriptor in others:
            os.close(descriptor)
        if pid > 0:
            self._watch(pid, control)
        return True

    def _watch(self, pid: int, control: int) -> None:
        # The child does the same: neither knows which of them is first.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        child = _Child(pid, socket.socket(fileno=control))
        self._by_control[control] = self._by_process[child.process] = child
        self._poll.register(control, select.POLLIN)
        self._poll.register(child.process, select.POLLIN)
        child.send(pid)

    def _become_worker(
        self, policy: bytes, environ: dict[str, str], descriptors: list[int]
    ) -> NoReturn:
        """Become a confined worker in this new process."""
        try:
            os.setpgid(0, 0)
            control, connection, memory, output = descriptors
            for descriptor in (1, 2):
                os.dup2(output, descriptor)
            for descriptor in (control, output, *self._by_control, *self._by_process):
                os.close(descriptor)
            self._requests.close()
            os.environ.clear()
            os.environ.update(environ)
            launcher.confine(marshal.loads(policy))  # noqa: S302 - the executor wrote it
            process.run_process(run_host, connection, memory, self._pid)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _remove(self, child: _Child) -> None:
        for descriptor in (child.control.fileno(), child.process):
            with contextlib.suppress(KeyError):
                self._poll.unregister(descriptor)
        del self._by_control[child.control.fileno()], self._by_process[child.process]
        child.end()


class _Child:
    """A forked process that was not waited for yet."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self._pid = pid
        self.control = control
        self.process = os.pidfd_open(pid)

    def send(self, number: int) -> None:
        # An executor that has closed the socket does not want to know.
        with contextlib.suppress(OSError):
            self.control.send(NUMBER.pack(number))

    def report_end(self) -> None:
        """Send the return code of the process, negative for a signal; it stays a zombie."""
        ended = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "its descriptor said that it has ended"
        is_exit = ended.si_code == os.CLD_EXITED
        self.send(ended.si_status if is_exit else -ended.si_status)

    def end(self) -> None:
        """Kill the process and those that it has started, and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self.control.close()
        os.close(self.process)


def _receive(requests: socket.socket) -> tuple[bytes, list[int]]:
    """Return a message and its descriptors; an empty one if the executor has closed the socket."""
    descriptors = array.array("i")
    try:
        data, ancillary, _, _ = requests.recvmsg(
            _MAX_REQUEST, socket.CMSG_SPACE(_DESCRIPTORS * descriptors.itemsize)
        )
    except ConnectionError:
        return b"", []
    for _, _, found in ancillary:
        descriptors.frombytes(found)
    return data, [*descriptors]
