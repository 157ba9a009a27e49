"""A timer for objects that are kept for reuse, and dropped when they were idle for a while."""

from __future__ import annotations

import contextlib
import math
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class IdleSweeper:
    """Calls sweep, in a thread of its own, every idle_s for as long as sweep returns True."""

    def __init__(self, sweep: Callable[[], bool], idle_s: float) -> None:
        """Make a timer that is not running; with idle_s math.inf it never runs.

        sweep drops idle objects and returns whether any object is left.
        """
        self._sweep = sweep
        self._idle_s = idle_s
        self._timer: threading.Timer | None = None
        # The lock is reentrant, because a finaliser that calls start() may interrupt its holder.
        self._lock = threading.RLock()

    def start(self) -> None:
        """Start the timer because an object is kept; a running timer is left as it is."""
        if self._timer is not None or self._idle_s == math.inf:
            return
        with self._lock:
            if self._timer is None:
                timer = threading.Timer(self._idle_s, self._run)
                timer.daemon = True
                # If the system has too many threads, the next call tries again.
                with contextlib.suppress(RuntimeError):
                    timer.start()
                    self._timer = timer

    def _run(self) -> None:
        self._timer = None
        if self._sweep():
            self.start()
