"""One decoder process, and the thread of the gateway that talks to it.

The thread starts the process when the first job comes, and again when it has ended: the kernel
kills a process with the thread that started it, so that none is left over. Sending and receiving
leave the interpreter's lock to the event loop.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.services.gateway.decoding.frames import receive_frame, send_frame
from nereid.services.gateway.decoding.outcomes import Lost, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.services.gateway.decoding.frames import Blob

    # Runs in the process: takes the blobs and the arguments, returns a value and blobs.
    JobFunction = Callable[..., tuple[Any, Sequence[Blob]]]

_MODULE: Final = "nereid.services.gateway.decoding"
# What Python and its libraries need; no secrets of the gateway's environment.
_ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "HOME", "TMPDIR")
# Others of this machine first: what is decoded there is large, and its client waits anyway.
_NICENESS: Final = 5
_EXIT_TIMEOUT_S: Final = 2.0


class Job(NamedTuple):
    """Work for a decoder process."""

    function: JobFunction
    arguments: tuple[Any, ...]
    blobs: Sequence[Blob]


class DecoderProcess:
    """Runs one job at a time. All methods are for the event loop's thread."""

    def __init__(self, memory_bytes: int) -> None:
        """memory_bytes: what the process may allocate."""
        self._memory_bytes = memory_bytes
        self._inbox: SimpleQueue[tuple[Job, Callable[[Outcome, list[bytes]], None]] | None] = (
            SimpleQueue()
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._thread: Thread | None = None

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        process = self._process
        return None if process is None else process.pid

    def run_job(self, job: Job, on_outcome: Callable[[Outcome, list[bytes]], None]) -> None:
        """Run a job; on_outcome is called in the process's thread."""
        if self._thread is None:
            self._thread = Thread(target=self._serve, name="decoder", daemon=True)
            self._thread.start()
        self._inbox.put((job, on_outcome))

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
                send_frame(channel, (job.function, job.arguments), job.blobs)
                outcome, blobs = receive_frame(channel)
            except (OSError, EOFError) as error:
                outcome = Lost(_end(process, channel) or str(error))
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


def _environment() -> dict[str, str]:
    known = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # Threads of BLAS would map a gigabyte, and are not needed.
    return known | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OPENBLAS_NUM_THREADS": "1",
    }


def _end(process: subprocess.Popen[bytes] | None, channel: socket.socket | None) -> str:
    """End a process, if there is one; returns how it ended."""
    if channel is not None:
        channel.close()
    if process is None:
        return ""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_TIMEOUT_S)
    process.kill()
    code = process.wait()
    return f"signal {-code}" if code < 0 else f"exit code {code}"
