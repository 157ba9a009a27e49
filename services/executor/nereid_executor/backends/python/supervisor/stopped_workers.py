"""Kills workers that are stopped (SIGSTOP, not just busy), so that they are restarted."""

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
    """Watches this process's workers by their process ids. Thread-safe."""

    def __init__(self, is_stopped: Callable[[int], bool] = is_stopped) -> None:
        self._is_stopped = is_stopped
        # The lock prevents killing the wrong process: a forgotten worker's id may be in use again.
        self._lock = threading.Lock()
        # Keys are process ids. Values: the name of the worker's model, and the monotonic time since
        # which the worker is stopped.
        self._models: dict[int, str] = {}
        self._stopped_since: dict[int, float] = {}

    def watch_worker(self, pid: int, model: str) -> None:
        """Watch a worker until it is forgotten."""
        with self._lock:
            self._models[pid] = model

    def forget_worker(self, pid: int) -> None:
        """Stop watching a worker. Call this before waiting for the worker's exit."""
        with self._lock:
            self._models.pop(pid, None)
            self._stopped_since.pop(pid, None)

    async def run(self, limit_s: float) -> None:
        """Once a second, kill the workers that have been stopped for limit_s seconds."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self.kill_stopped(time.monotonic(), limit_s)

    def kill_stopped(self, now: float, limit_s: float) -> list[int]:
        """Kill workers stopped for limit_s, and their child processes; return the workers' ids."""
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
