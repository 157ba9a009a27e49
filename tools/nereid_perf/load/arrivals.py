"""Open loops: when each request is to be sent, whatever the server does. Pure.

The same seed gives the same times. A process of rate 1 (constant, Poisson, gamma) is stretched to a
profile of rates (steady, ramp, bursts), so that each process works with each profile.
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
    """Rate over time."""

    def times_s(self, amounts: Amounts) -> Amounts:
        """Return the times, in seconds since the start, by which so many requests are due."""
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    """Constant rate, per second."""

    rate: float

    def times_s(self, amounts: Amounts) -> Amounts:
        """Return the times, in seconds since the start, by which so many requests are due."""
        return amounts / self.rate


@dataclass(frozen=True, slots=True)
class Ramp:
    """Ramp from one rate to another in so many seconds; then the rate stays."""

    first: float
    last: float
    ramp_s: float

    def times_s(self, amounts: Amounts) -> Amounts:
        """Return the times, in seconds since the start, by which so many requests are due."""
        # The equation amount = first * t + slope * t^2 / 2 is solved in the form that is exact for
        # a slope of 0.
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
    """Bursts of a higher rate at the beginning of each period.

    Between them `rate`, which may be 0.
    """

    rate: float
    burst_rate: float
    burst_s: float
    period_s: float

    def times_s(self, amounts: Amounts) -> Amounts:
        """Return the times, in seconds since the start, by which so many requests are due."""
        in_burst = self.burst_rate * self.burst_s
        in_period = in_burst + self.rate * (self.period_s - self.burst_s)
        periods, left = np.divmod(amounts, in_period)
        burst = np.minimum(left, in_burst) / self.burst_rate
        calm = np.maximum(left - in_burst, 0.0) / (self.rate or 1.0)
        return np.asarray(periods * self.period_s + burst + calm)


def arrivals(
    profile: Profile, distribution: Distribution, *, seed: int, gamma_variation: float = 1.0
) -> Iterator[Times]:
    """Yield times in ns since the start, in blocks, without end.

    gamma_variation: standard deviation of gaps over their mean; 1 is Poisson's, more gives
    clusters.
    """
    random = np.random.default_rng(seed)
    shape = 1 / gamma_variation**2
    done = 0.0
    for block in count():
        if distribution == "constant":
            # The times are not sums of gaps: a long run would drift.
            amounts = np.arange(block * _BLOCK, (block + 1) * _BLOCK, dtype=np.float64)
        elif distribution == "poisson":
            amounts = done + np.cumsum(random.exponential(size=_BLOCK))
        else:
            amounts = done + np.cumsum(random.gamma(shape, 1 / shape, _BLOCK))
        done = float(amounts[-1])
        yield (profile.times_s(amounts) * _NS).astype(np.int64)


def repeated_intervals(gaps_ns: Sequence[int]) -> Iterator[Times]:
    """Yield one request after each gap; after the last gap the first one follows again."""
    ends = np.cumsum(np.asarray(gaps_ns, dtype=np.int64))
    # A block has several rounds of a short list.
    rounds = max(1, _BLOCK // len(ends))
    block = np.concatenate([ends + number * ends[-1] for number in range(rounds)])
    for times in count():
        yield block + times * block[-1]


def every_nth(blocks: Iterator[Times], first: int, step: int) -> Iterator[Times]:
    """Yield one worker's share of a schedule that all workers compute."""
    place = first
    for block in blocks:
        yield block[place::step]
        place = (place - len(block)) % step
