"""One decoder process, and the gateway's thread that talks to it.

The kernel kills the process when the thread that started it ends, so no process is left behind. The
thread sends and receives without the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid_gateway.plane.decoding.frames import receive_frame, send_frame
from nereid_gateway.plane.decoding.outcomes import (
    OUT_OF_MEMORY_EXIT_CODE,
    Crashed,
    Lost,
    Outcome,
    OutOfMemory,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_gateway.core.tensors.jobs import Blob, JobFunction


_MODULE: Final = "nereid_gateway.decoder"
# No other variables are passed on, because the gateway's environment may hold secrets.
_ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "HOME", "TMPDIR")
# Clients of large requests have to wait anyway, so other processes go first.
_NICENESS: Final = 5
_EXIT_TIMEOUT_S: Final = 2.0
# Exit codes for signals of other processes, or of the kernel when memory runs out.
_KILLED_BY: Final = frozenset({-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT})


class Job(NamedTuple):
    """Work for a decoder process."""

    function: JobFunction
    arguments: tuple[Any, ...]
    blobs: Sequence[Blob]


OnOutcome = Callable[[Outcome, list[bytes]], None]
# Without a job, the process is only started.
_Item = tuple[Job | None, OnOutcome]


class DecoderProcess:
    """Runs one job at a time. All public methods must be called in the event loop's thread."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._inbox: SimpleQueue[_Item | None] = SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._thread: Thread | None = None

    @property
    def pid(self) -> int | None:
        """Process id, or `None` if the process is not running."""
        process = self._process
        return None if process is None else process.pid

    def run_job(self, job: Job, on_outcome: OnOutcome) -> None:
        """Run a job. on_outcome is called in the thread that serves the process."""
        self._put((job, on_outcome))

    def start(self) -> None:
        """Start the process before it has a job, unless it is already running."""
        if self._thread is None:
            self._put((None, _ignore))

    def kill(self) -> None:
        """Kill the process, even during its job. The next job gets a new process."""
        process = self._process
        if process is not None:
            process.kill()

    def end(self) -> None:
        """End the process once its job is done. A later job starts a new process."""
        if self._thread is not None:
            self._thread = None
            inbox, self._inbox = self._inbox, SimpleQueue()
            inbox.put(None)

    def _put(self, item: _Item) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._serve, name="decoder", daemon=True)
            self._thread.start()
        self._inbox.put(item)

    def _serve(self) -> None:
        inbox = self._inbox
        channel: socket.socket | None = None
        process: subprocess.Popen[bytes] | None = None
        while (item := inbox.get()) is not None:
            job, on_outcome = item
            outcome: Outcome
            blobs: list[bytes] = []
            try:
                if process is None or channel is None:
                    process, channel = self._start()
                    self._process = process
                if job is None:
                    continue
                send_frame(channel, (job.function, job.arguments), job.blobs)
                outcome, blobs = receive_frame(channel)
            except (OSError, EOFError) as error:
                outcome = _outcome_of(_end(process, channel), error)
                process = channel = self._process = None
            del job, item
            on_outcome(outcome, blobs)
            del on_outcome, blobs, outcome
        if self._process is process:
            self._process = None
        _end(process, channel)

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                arguments = [theirs.fileno(), os.getpid(), self._memory_bytes, _NICENESS]
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _MODULE, *map(str, arguments)],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    # Signals of a terminal are meant for the gateway alone.
                    start_new_session=True,
                    env=_environment(),
                )
            except OSError:
                ours.close()
                raise
        return process, ours


def _ignore(outcome: Outcome, blobs: list[bytes]) -> None:
    """Ignore the outcome, because the process was started without a job."""


def _environment() -> dict[str, str]:
    known = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # BLAS threads are not needed, and would map a gigabyte of memory.
    return known | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OPENBLAS_NUM_THREADS": "1",
    }


def _outcome_of(code: int | None, error: Exception) -> Outcome:
    """Return the outcome of an ended process's job. code: None if it did not start."""
    if code is None:
        return Lost(str(error))
    if code == OUT_OF_MEMORY_EXIT_CODE:
        return OutOfMemory()
    reason = f"signal {-code}" if code < 0 else f"exit code {code}"
    # A process ends by itself only with its gateway. If nobody has killed it, the job has crashed
    # it.
    return Lost(reason) if code in _KILLED_BY else Crashed(reason)


def _end(process: subprocess.Popen[bytes] | None, channel: socket.socket | None) -> int | None:
    """Return a process's exit code, negative if a signal ended it, or None without a process."""
    if channel is not None:
        channel.close()
    if process is None:
        return None
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_TIMEOUT_S)
    process.kill()
    return process.wait()
