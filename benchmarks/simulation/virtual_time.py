"""Event loop with virtual time, which jumps to the next timer when there is nothing to do."""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from typing import Any


class Clock:
    """Clock that has the nanoseconds since the start of the simulation."""

    def __init__(self) -> None:
        self.now_ns = 1

    def install(self) -> None:
        """Make the process see this time.

        Call this before the scheduler is imported, because the import binds functions of clocks.

        CPU clocks stay real.
        """
        time.monotonic_ns = lambda: self.now_ns
        time.monotonic = lambda: self.now_ns / 1e9


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        """Let the time pass until the next timer."""
        if timeout is None:
            raise RuntimeError("nothing is left to happen, and the simulation is not over")
        self._clock.now_ns += math.ceil(timeout * 1e9)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose timers fire in order and without delay."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(_Selector(clock))
        self._virtual = clock

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual.now_ns / 1e9
