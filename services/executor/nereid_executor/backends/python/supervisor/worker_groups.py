"""Kills what confined models have started when the executor ends, even if it is killed.

The kernel kills a worker with its executor (PR_SET_PDEATHSIG), but not the worker's children.
"""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import sys
import threading
from typing import Final

# Reads groups, one a line, negative when they are forgotten, until the executor has ended.
_GUARD: Final = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    group = int(line)
    (groups.add if group > 0 else groups.discard)(abs(group))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class WorkerGroups:
    """The process groups of this process's confined workers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._guard: subprocess.Popen[bytes] | None = None

    def watch_group(self, group: int) -> None:
        """Kill a group when this process ends, unless it is forgotten; raise OSError on failure."""
        with self._lock:
            self._groups.add(group)
            self._send([group])

    def forget_group(self, group: int) -> None:
        """Forget a group. Call this before waiting for the worker: its id may be reused then."""
        with self._lock:
            if group in self._groups:
                self._groups.remove(group)
                # A guard that has ended needs no message.
                with contextlib.suppress(OSError):
                    self._send([-group])

    def close(self) -> None:
        """Kill the groups that are left, as the end of this process would."""
        with self._lock:
            guard, self._guard = self._guard, None
            self._groups.clear()
        if guard is not None:
            # Leaving the block closes the pipe, and waits.
            with guard:
                pass

    def _send(self, groups: list[int]) -> None:
        guard = self._guard
        if guard is None or guard.poll() is not None:
            guard = self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _GUARD],
                bufsize=0,
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            groups = [*self._groups]
        assert guard.stdin is not None, "it has a pipe"
        guard.stdin.write("".join(f"{group}\n" for group in groups).encode())


WORKER_GROUPS: Final = WorkerGroups()
atexit.register(WORKER_GROUPS.close)
