"""Schedules of open loops, in which requests are sent at set times, whatever the server does.

The same seed gives the same times.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Times = NDArray[np.int64]
    Amounts = NDArray[np.float64]

Distribution = Literal["constant", "poisson", "gamma"]
_BLOCK: Final = 1024
_NS: Final = 1e9


class Profile(Protocol):
    """The rate of requests over time. Times are in seconds since the start."""

    def times_s(self, amounts: Amounts) -> Amounts:
        """For each amount n, return the time until n requests are due."""
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    """A constant rate, per second."""

    rate: float

    def times_s(self, amounts: Amounts) -> Amounts:
        """For each amount n, return the time until n requests are due."""
        return amounts / self.rate


@dataclass(frozen=True, slots=True)
class Ramp:
    """A ramp from one rate to another in ramp_s seconds; after that the rate is constant."""

    first: float
    last: float
    ramp_s: float

    def times_s(self, amounts: Amounts) -> Amounts:
        """For each amount n, return the time until n requests are due."""
        # Solve amount = first * t + slope * t^2 / 2 for t, exactly even for a slope of 0.
        slope = (self.last - self.first) / self.ramp_s
        in_ramp = (self.first + self.last) / 2 * self.ramp_s
        inside = np.minimum(amounts, in_ramp)
        root = np.sqrt(np.maximum(self.first**2 + 2 * slope * inside, 0.0))
        divisor = self.first + root
        in_time = np.divide(2 * inside, divisor, out=np.zeros_like(inside), where=divisor > 0)
        behind = np.maximum(amounts - in_ramp, 0.0) / self.last
        return np.asarray(in_time + behind)


@dataclass(frozen=True, slots=True)
class Bursts:
    """Bursts at a higher rate at the beginning of each period; `rate`, in between, may be 0."""

    rate: float
    burst_rate: float
    burst_s: float
    period_s: float

    def times_s(self, amounts: Amounts) -> Amounts:
        """For each amount n, return the time until n requests are due."""
        in_burst = self.burst_rate * self.burst_s
        in_period = in_burst + self.rate * (self.period_s - self.burst_s)
        periods, left = np.divmod(amounts, in_period)
        burst = np.minimum(left, in_burst) / self.burst_rate
        calm = np.maximum(left - in_burst, 0.0) / (self.rate or 1.0)
        return np.asarray(periods * self.period_s + burst + calm)


def arrivals(
    profile: Profile, distribution: Distribution, *, seed: int, gamma_variation: float = 1.0
) -> Iterator[Times]:
    """Yield blocks of the times at which requests are due, in ns since the start, without end.

    gamma_variation: standard deviation of the gaps divided by their mean. 1 is a Poisson
    process; larger values give clusters of requests.
    """
    random = np.random.default_rng(seed)
    shape = 1 / gamma_variation**2
    done = 0.0
    for block in count():
        if distribution == "constant":
            # Sums of gaps would drift in a long run.
            amounts = np.arange(block * _BLOCK, (block + 1) * _BLOCK, dtype=np.float64)
        elif distribution == "poisson":
            amounts = done + np.cumsum(random.exponential(size=_BLOCK))
        else:
            amounts = done + np.cumsum(random.gamma(shape, 1 / shape, _BLOCK))
        done = float(amounts[-1])
        yield (profile.times_s(amounts) * _NS).astype(np.int64)


def repeated_intervals(gaps_ns: Sequence[int]) -> Iterator[Times]:
    """Yield blocks of times with these gaps between requests; after the last gap, start again."""
    ends = np.cumsum(np.asarray(gaps_ns, dtype=np.int64))
    rounds = max(1, _BLOCK // len(ends))
    block = np.concatenate([ends + number * ends[-1] for number in range(rounds)])
    for times in count():
        yield block + times * block[-1]


def every_nth(blocks: Iterator[Times], first: int, step: int) -> Iterator[Times]:
    """Yield one worker's times: every step-th time of the whole schedule, from `first` on."""
    place = first
    for block in blocks:
        yield block[place::step]
        place = (place - len(block)) % step
