"""Calls functions at set times, with a precision of microseconds."""

from __future__ import annotations

import heapq
from itertools import count
from time import monotonic_ns
from typing import TYPE_CHECKING

from nereid_perf.precise_timer import PreciseTimer

if TYPE_CHECKING:
    from collections.abc import Callable


class DelayedCalls:
    """The delayed calls of the running event loop."""

    def __init__(self) -> None:
        self._timer = PreciseTimer(self._on_time)
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def call_at(self, time_ns: int, call: Callable[[], None]) -> None:
        """Call a function at a time, or at once if it has passed. Calls keep the times' order."""
        calls = self._calls
        if time_ns <= monotonic_ns() and not calls:
            call()
            return
        heapq.heappush(calls, (time_ns, next(self._numbers), call))
        if calls[0][0] == time_ns:
            self._timer.set_ns(time_ns)

    def close(self) -> None:
        """Drop all calls."""
        self._calls.clear()
        self._timer.close()

    def _on_time(self) -> None:
        calls = self._calls
        now_ns = monotonic_ns()
        while calls and calls[0][0] <= now_ns:
            heapq.heappop(calls)[2]()
        if calls:
            self._timer.set_ns(calls[0][0])
