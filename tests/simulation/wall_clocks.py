"""The processes' wall clocks, which somebody sets by hours again and again, both ways."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.processes import MeshLoop

# Between two jumps of a process's clock.
_PERIOD_NS = 3_000_000_000
_HOURS = (-12, -5, -1, 0, 1, 5, 12)
_HOUR_NS = 3_600_000_000_000


class WallClocks:
    """What time.time() and time.time_ns() return. Nothing else of a simulation depends on it."""

    def __init__(self) -> None:
        self._loop: MeshLoop | None = None
        self._seed = 0
        self._offsets_ns: dict[tuple[str, int], int] = {}
        # How often somebody was given a time that is hours away.
        self.wrong = 0

    def install(self) -> None:
        """Call this before the services are imported: they bind functions of clocks then."""
        real_ns = time.time_ns
        time.time_ns = lambda: real_ns() + self._offset_ns()
        time.time = lambda: time.time_ns() / 1e9

    def start(self, loop: MeshLoop, seed: int) -> None:
        """Let the clocks of this loop's processes jump from now on."""
        self._loop, self._seed = loop, seed

    def _offset_ns(self) -> int:
        if self._loop is None:
            return 0
        key = self._loop.process.name, time.monotonic_ns() // _PERIOD_NS
        if key not in self._offsets_ns:
            hours = random.Random(f"clocks of {self._seed}: {key}").choice(_HOURS)
            self._offsets_ns[key] = hours * _HOUR_NS
        offset_ns = self._offsets_ns[key]
        self.wrong += offset_ns != 0
        return offset_ns
