"""Workers that are stopped (SIGSTOP): they are killed, and so restarted as after a crash.

A worker that executes for long is not stopped, however busy it is: /proc tells the two apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from nereid.process.liveness import is_stopped

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0


class StoppedWorkers:
    """Watches the process's workers, by process id; from any thread."""

    def __init__(self, is_stopped: Callable[[int], bool] = is_stopped) -> None:
        self._is_stopped = is_stopped
        # A process id is free for others once its worker is forgotten.
        self._lock = threading.Lock()
        # By process id: the worker's model, and since when the worker is stopped.
        self._models: dict[int, str] = {}
        self._stopped_since: dict[int, float] = {}

    def watch_worker(self, pid: int, model: str) -> None:
        with self._lock:
            self._models[pid] = model

    def forget_worker(self, pid: int) -> None:
        """To be called before its exit is waited for."""
        with self._lock:
            self._models.pop(pid, None)
            self._stopped_since.pop(pid, None)

    async def run(self, limit_s: float) -> None:
        """Kill workers that are stopped for so long, until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self.kill_stopped(time.monotonic(), limit_s)

    def kill_stopped(self, now: float, limit_s: float) -> list[int]:
        """One look; the process ids of the workers that were killed, with all that they started."""
        killed = []
        with self._lock:
            for pid, model in self._models.items():
                if not self._is_stopped(pid):
                    self._stopped_since.pop(pid, None)
                elif now - self._stopped_since.setdefault(pid, now) >= limit_s:
                    text = "the worker of model '%s' is stopped for %g s; killing it: pid=%d"
                    _log.error(text, model, limit_s, pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                    killed.append(pid)
        return killed


STOPPED_WORKERS: Final = StoppedWorkers()
