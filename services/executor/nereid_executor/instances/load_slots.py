"""Slots that limit the number of concurrent loads, so that no model delays all others.

If one model's loads hold all slots, another model gets one more. A load that takes very long is not
counted any more.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE_S: Final = 60.0


class _Load:
    def __init__(self, model: str) -> None:
        self.model = model
        self.granted = threading.Event()
        self.since_s = 0.0


class LoadSlots:
    """The slots for the loads of one executor. Used by the threads of instances."""

    def __init__(self, count: int, patience_s: float = _PATIENCE_S) -> None:
        self._count = count
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._waiting: list[_Load] = []
        self._running: list[_Load] = []

    @contextmanager
    def hold(self, model: str) -> Iterator[None]:
        """Wait for a slot for this model, and hold the slot within the context."""
        load = _Load(model)
        with self._lock:
            self._waiting.append(load)
            self._grant()
        while not load.granted.wait(self._until_next_overdue_s()):
            with self._lock:
                self._grant()
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(load)
                self._grant()

    def _until_next_overdue_s(self) -> float | None:
        with self._lock:
            counted = self._counted()
            if not counted:
                return self._patience_s
            oldest_s = min(load.since_s for load in counted)
        return max(0.0, oldest_s + self._patience_s - time.monotonic())

    def _counted(self) -> list[_Load]:
        overdue_s = time.monotonic() - self._patience_s
        return [load for load in self._running if load.since_s > overdue_s]

    def _grant(self) -> None:
        """Begin the waiting loads that may begin. Called with the lock held."""
        while self._waiting:
            counted = self._counted()
            # Next is the model with the fewest running loads; among several, the longest waiting.
            load = min(self._waiting, key=lambda waiting: self._running_of(waiting.model))
            if len(counted) >= self._count and not self._is_crowded_out(load, counted):
                return
            self._waiting.remove(load)
            load.since_s = time.monotonic()
            self._running.append(load)
            load.granted.set()

    def _running_of(self, model: str) -> int:
        return sum(load.model == model for load in self._running)

    def _is_crowded_out(self, load: _Load, counted: list[_Load]) -> bool:
        """Return whether the loads of one other model hold all slots.

        If there is only one slot, the result is False: that slot limits memory and is never
        exceeded.
        """
        models = {running.model for running in counted}
        return 1 < self._count == len(counted) and len(models) == 1 and load.model not in models
