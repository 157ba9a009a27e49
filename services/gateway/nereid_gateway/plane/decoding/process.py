"""One decoder process, and the thread of the gateway that talks to it.

The thread starts the process when the first job comes, and again when it has ended: the kernel
kills a process with the thread that started it, so that none is left over. Sending and receiving
leave the interpreter's lock to the event loop.
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

    # Runs in the process: takes the blobs and the arguments, returns a value and blobs.

_MODULE: Final = "nereid_gateway.decoder"
# What Python and its libraries need; no secrets of the gateway's environment.
_ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "HOME", "TMPDIR")
# Others of this machine first: what is decoded there is large, and its client waits anyway.
_NICENESS: Final = 5
_EXIT_TIMEOUT_S: Final = 2.0
# What others send, and the kernel where the machine runs out of memory.
_KILLED_BY: Final = frozenset({-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT})


class Job(NamedTuple):
    """Work for a decoder process."""

    function: JobFunction
    arguments: tuple[Any, ...]
    blobs: Sequence[Blob]


OnOutcome = Callable[[Outcome, list[bytes]], None]
# None in place of a job: the process is only started.
_Item = tuple[Job | None, OnOutcome]


class DecoderProcess:
    """Runs one job at a time. All methods are for the event loop's thread."""

    def __init__(self, memory_bytes: int) -> None:
        """memory_bytes: what the process may allocate."""
        self._memory_bytes = memory_bytes
        self._inbox: SimpleQueue[_Item | None] = SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._thread: Thread | None = None

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        process = self._process
        return None if process is None else process.pid

    def run_job(self, job: Job, on_outcome: OnOutcome) -> None:
        """Run a job; on_outcome is called in the process's thread."""
        self._put((job, on_outcome))

    def start(self) -> None:
        """Start the process before it has a job, unless that was done."""
        if self._thread is None:
            self._put((None, _ignore))

    def kill(self) -> None:
        """End the process now, in the middle of its job; the next job gets a new one."""
        process = self._process
        if process is not None:
            process.kill()

    def end(self) -> None:
        """End the process once its job is done; a further job starts another one."""
        if self._thread is not None:
            self._thread = None
            inbox, self._inbox = self._inbox, SimpleQueue()
            inbox.put(None)

    def _put(self, item: _Item) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._serve, name="decoder", daemon=True)
            self._thread.start()
        self._inbox.put(item)

    # --- in the thread --------------------------------------------------------------------------

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
                    # A terminal's signals are for the gateway.
                    start_new_session=True,
                    env=_environment(),
                )
            except OSError:
                ours.close()
                raise
        return process, ours


def _ignore(outcome: Outcome, blobs: list[bytes]) -> None:
    """What becomes of a process that is only started."""


def _environment() -> dict[str, str]:
    known = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # Threads of BLAS would map a gigabyte, and are not needed.
    return known | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OPENBLAS_NUM_THREADS": "1",
    }


def _outcome_of(code: int | None, error: Exception) -> Outcome:
    """Of the job that a process had when it ended; error: of its channel."""
    if code is None:
        return Lost(str(error))
    if code == OUT_OF_MEMORY_EXIT_CODE:
        return OutOfMemory()
    reason = f"signal {-code}" if code < 0 else f"exit code {code}"
    # By itself it ends at the end of its gateway only.
    return Lost(reason) if code in _KILLED_BY else Crashed(reason)


def _end(process: subprocess.Popen[bytes] | None, channel: socket.socket | None) -> int | None:
    """End a process, if there is one; returns its exit code, or a signal's number negated."""
    if channel is not None:
        channel.close()
    if process is None:
        return None
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_TIMEOUT_S)
    process.kill()
    return process.wait()
