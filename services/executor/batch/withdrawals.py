"""Batches that the scheduler takes back from an instance before it has begun them.

While the instance executes, its next batch may lie in its socket, where nobody can remove it. So it
is skipped when its turn comes. Exactly one side wins: a batch is executed and responded to, or
reported as withdrawn and never executed.
"""

from __future__ import annotations

import threading


class Withdrawals:
    """One instance's. Batches come in the order of their numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = -1
        self._withdrawn = -1

    def begin(self, batch: int) -> bool:
        """Its instance is about to execute a batch; False: it must not. Called in its thread."""
        with self._lock:
            self._begun = batch
            return batch != self._withdrawn

    def withdraw(self, batch: int) -> bool:
        """Prevent that a batch is executed; False: it has begun. From any thread."""
        with self._lock:
            if batch <= self._begun:
                return False
            self._withdrawn = batch
            return True
