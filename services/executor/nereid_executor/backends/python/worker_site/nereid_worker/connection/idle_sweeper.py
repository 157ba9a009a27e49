"""A timer that drops objects kept for reuse when they have been idle for a while."""

from __future__ import annotations

import contextlib
import math
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class IdleSweeper:
    """Calls sweep() every idle_s seconds, in its own thread, until sweep() returns False."""

    def __init__(self, sweep: Callable[[], bool], idle_s: float) -> None:
        """Make a stopped timer. sweep drops idle objects and returns whether any is left."""
        self._sweep = sweep
        self._idle_s = idle_s
        self._timer: threading.Timer | None = None
        # The lock is reentrant: a finaliser that calls start() may interrupt a thread that holds
        # it.
        self._lock = threading.RLock()

    def start(self) -> None:
        """Start the timer unless it runs already. Call this when an object is kept."""
        if self._timer is not None or self._idle_s == math.inf:
            return
        with self._lock:
            if self._timer is None:
                timer = threading.Timer(self._idle_s, self._run)
                timer.daemon = True
                # If the system can start no more threads, the next start() tries again.
                with contextlib.suppress(RuntimeError):
                    timer.start()
                    self._timer = timer

    def _run(self) -> None:
        self._timer = None
        if self._sweep():
            self.start()
