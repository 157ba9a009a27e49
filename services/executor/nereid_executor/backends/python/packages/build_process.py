"""Runs the processes of a build: each within a deadline, ending with the executor."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_POLL_MS: Final = 200
_CHUNK: Final = 1 << 16
_MAX_LINE: Final = 1 << 16
# The guard ends the whole group, with all that setup.py has started, once the executor has closed
# its end of the pipe, or has been killed.
_GUARD: Final = """
import os, signal, subprocess, sys, threading
def watch():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
code = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL, close_fds=False)
os._exit(code if code >= 0 else 1)
"""


class BuildCancelledError(Exception):
    """Nobody needs the environment any more."""


class BuildTimeoutError(Exception):
    """A build has taken longer than it may."""


@dataclass(frozen=True)
class ProcessRules:
    """Rules for all processes of one build."""

    environ: Mapping[str, str]
    folder: Path
    # A descriptor that the processes keep open.
    inherited: int
    # A monotonic time.
    until: float
    cancelled: threading.Event


def run_build_process(
    command: Sequence[str], rules: ProcessRules, on_line: Callable[[str], None]
) -> int:
    """Run a command and return its exit code; call on_line with each line of its output.

    Raises BuildTimeoutError, BuildCancelledError, or OSError if the process cannot be started.
    """
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, *command],
        cwd=rules.folder,
        env=dict(rules.environ),
        pass_fds=(rules.inherited,),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        end = os.pidfd_open(process.pid)
        try:
            _read_lines(process, end, rules, on_line)
        finally:
            os.close(end)
            # The group exists until wait().
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode


def _read_lines(
    process: subprocess.Popen[bytes],
    end: int,
    rules: ProcessRules,
    on_line: Callable[[str], None],
) -> None:
    """Read lines until the process has ended; `end` is readable then."""
    assert process.stdout is not None
    output = process.stdout.fileno()
    poll = select.poll()
    poll.register(output, select.POLLIN)
    poll.register(end, select.POLLIN)
    rest = b""
    while True:
        if rules.cancelled.is_set():
            raise BuildCancelledError
        if time.monotonic() > rules.until:
            raise BuildTimeoutError
        ready = {descriptor for descriptor, _ in poll.poll(_POLL_MS)}
        if output in ready:
            chunk = os.read(output, _CHUNK)
            if not chunk:
                poll.unregister(output)
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_MAX_LINE:]
            for line in lines:
                on_line(line.decode(errors="replace"))
        elif end in ready:
            break
    if rest:
        on_line(rest.decode(errors="replace"))
