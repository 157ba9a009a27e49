"""A timer for what is kept for later use, and given up when it was not used for a while."""

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
        """sweep: gives up what is idle; whether anything is left. idle_s: math.inf for never."""
        self._sweep = sweep
        self._idle_s = idle_s
        self._timer: threading.Timer | None = None
        # Reentrant: the garbage collector may finalise what calls start().
        self._lock = threading.RLock()

    def start(self) -> None:
        """Something is kept."""
        if self._timer is not None or self._idle_s == math.inf:
            return
        with self._lock:
            if self._timer is None:
                timer = threading.Timer(self._idle_s, self._run)
                timer.daemon = True
                # Too many threads: try again with the next call.
                with contextlib.suppress(RuntimeError):
                    timer.start()
                    self._timer = timer

    def _run(self) -> None:
        self._timer = None
        if self._sweep():
            self.start()
