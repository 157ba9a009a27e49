"""Rules of when a measurement is stable: perf_analyzer's rule, or a confidence interval."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOWS: Final = 3


@dataclass(frozen=True, slots=True)
class Window:
    """Figures of one window; latency: a mean or a percentile, in the same unit in all windows."""

    rate: float
    latency: float


class StabilityRule(Protocol):
    """A rule that says when enough windows are measured."""

    def stable_windows(self, windows: Sequence[Window]) -> int:
        """Return how many of the last windows to use, or 0 if more windows are needed."""
        ...


@dataclass(frozen=True, slots=True)
class LastThree:
    """perf_analyzer's rule: rate and latency of the last three windows are within s %.

    A last window above max_latency ends the measurement: it only gets worse.
    """

    stability_percent: float = 10.0
    max_latency: float | None = None

    def stable_windows(self, windows: Sequence[Window]) -> int:
        """Return 3 if the last three windows are alike, or if the last is too slow; otherwise 0."""
        if len(windows) < WINDOWS:
            return 0
        last = windows[-WINDOWS:]
        if any(window.rate <= 0 for window in last):
            return 0
        if self.max_latency is not None and last[-1].latency > self.max_latency:
            return WINDOWS
        within = 1 + self.stability_percent / 100
        rates = [window.rate for window in last]
        latencies = [window.latency for window in last]
        stable = max(rates) <= within * min(rates) and max(latencies) <= within * min(latencies)
        return WINDOWS if stable else 0


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A rule that measures until the means of rate and latency are known to within s %.

    The confidence is 95 % (Student's t) if windows are independent. A drifting load never meets it.
    """

    stability_percent: float = 5.0
    least_windows: int = 5

    def stable_windows(self, windows: Sequence[Window]) -> int:
        """Return the number of all windows once the means are known well enough; until then 0."""
        number = len(windows)
        if number < max(2, self.least_windows):
            return 0
        for values in ([window.rate for window in windows], [window.latency for window in windows]):
            mean = statistics.fmean(values)
            half = _t95(number - 1) * statistics.stdev(values) / math.sqrt(number)
            if mean <= 0 or half > mean * self.stability_percent / 100:
                return 0
        return number


def _t95(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t, to 1 % (Cornish-Fisher expansion)."""
    z = 1.959964
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    exact = {1: 12.706, 2: 4.303}
    return exact.get(freedom) or sum(term / freedom**power for power, term in enumerate(terms))
