"""Phases of the offered load.

The module holds no state and does no I/O.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class Phase:
    """Phase in which requests come at random times, at a rate per second.

    Each second may begin with a burst at another rate. slower: factor by which executions take
    longer.
    """

    name: str
    seconds: float
    rate: float
    burst_rate: float = 0.0
    burst_s: float = 0.0
    slower: float = 1.0

    def rate_at(self, time_s: float) -> float:
        """Return the rate at a time."""
        return self.burst_rate if time_s % 1 < self.burst_s else self.rate

    @property
    def mean_rate(self) -> float:
        """Mean rate over a second."""
        return self.rate + (self.burst_rate - self.rate) * self.burst_s


def phases_of(seconds: float) -> list[Phase]:
    """Return phases of this length. The instances serve about 1400 requests per second."""
    return [
        Phase("steady", seconds, 600),
        Phase("doubled", seconds, 1200),
        Phase("halved", seconds, 600),
        Phase("bursts", seconds, 300, burst_rate=3000, burst_s=0.1),
        Phase("2x slower", seconds, 300, slower=2.0),
        Phase("fast again", seconds, 600),
        Phase("overload", seconds, 3000),
        Phase("recovered", seconds, 600),
    ]


def arrivals(phases: Sequence[Phase], seed: int) -> Iterator[float]:
    """Yield the times at which requests come, in seconds since the start."""
    rng = random.Random(seed)
    began_s = 0.0
    for phase in phases:
        most = max(phase.rate, phase.burst_rate)
        time_s = 0.0
        while (time_s := time_s + rng.expovariate(most)) < phase.seconds:
            if rng.random() * most < phase.rate_at(time_s):
                yield began_s + time_s
        began_s += phase.seconds
