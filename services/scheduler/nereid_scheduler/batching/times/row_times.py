"""Expected times of a version's batches by their number of rows, for latency targets."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

_WEIGHT: Final = 0.125
# The first _FIRST measurements of a size are averaged, each capped at _MOST times the mean.
_FIRST: Final = 4
_MOST: Final = 2.0
# A measurement is an exception if its ratio to the mean is not between these. Exceptions do not
# change the mean, but _SHIFT in a row mean that the whole model has become slower or faster.
_FASTER, _SLOWER = 0.8, 1.25
_SHIFT: Final = 8
# The spread comes from the last _WINDOW measurements; with fewer than _FEW, it is assumed.
_WINDOW: Final = 64
_FEW: Final = 8
_ASSUMED_SPREAD: Final = 1.25
_QUANTILE: Final = 0.95
# A size without an execution for this long is forgotten.
_STALE_NS: Final = 30_000_000_000
# Sizes above this one are rounded up to steps of a sixteenth or less.
_EXACT: Final = 32


def step_of(size: int) -> int:
    """Return the measured size that stands for this size: the same one, or a little larger."""
    if size <= _EXACT:
        return size
    unit = 1 << (size.bit_length() - 5)
    return -(-size // unit) * unit


def steps_up_to(largest: int) -> list[int]:
    """Return the sizes that are measured separately, ascending; the last one is `largest`."""
    steps = []
    size = 1
    while size < largest:
        steps.append(size)
        size = step_of(size + 1)
    return [*steps, largest]


class _SizeTimes:
    """Measurements of one size. The first execution is not measured, as it may be slower."""

    __slots__ = ("executions", "mean_ns", "seen_ns")

    def __init__(self, now_ns: int) -> None:
        self.executions = 0
        self.mean_ns = 0.0
        self.seen_ns = now_ns


class RowTimes:
    """Times of one version's batches; the measurements of all instances are combined."""

    def __init__(self) -> None:
        self._by_size: dict[int, _SizeTimes] = {}
        # Known sizes, ascending.
        self._sizes: list[int] = []
        # Measurements divided by their expected times, the newest last.
        self._ratios: list[float] = []
        # Ratio of a slow execution (the `_QUANTILE`) to the mean of its size.
        self.spread = _ASSUMED_SPREAD
        # Number of times that the whole model has become slower or faster.
        self.shifts = 0

    @property
    def largest(self) -> int:
        """The largest measured size; 0 if there is none."""
        return self._sizes[-1] if self._sizes else 0

    def knows_up_to(self, size: int) -> bool:
        """Return whether this size or a smaller one was measured."""
        return bool(self._sizes) and self._sizes[0] <= size

    def record(self, size: int, duration_ns: int, now_ns: int) -> None:
        """Record an execution of a batch of this size."""
        step = step_of(size)
        times = self._by_size.get(step)
        if times is None:
            self._by_size[step] = _SizeTimes(now_ns)
            return
        times.seen_ns = now_ns
        times.executions += 1
        if times.executions == 1:
            times.mean_ns = float(duration_ns)
            self._sizes = sorted(step for step, known in self._by_size.items() if known.executions)
            return
        ratio = duration_ns / max(times.mean_ns, 1.0)
        if times.executions <= _FIRST:
            times.mean_ns *= 1 + (min(ratio, _MOST) - 1) / times.executions
            return
        if _FASTER <= ratio <= _SLOWER:
            times.mean_ns *= 1 + (ratio - 1) * _WEIGHT
        self._record_ratio(ratio)

    def _record_ratio(self, ratio: float) -> None:
        ratios = self._ratios
        ratios.append(ratio)
        last = ratios[-_SHIFT:]
        if len(last) == _SHIFT and (min(last) > _SLOWER or max(last) < _FASTER):
            factor = sorted(last)[_SHIFT // 2]
            for times in self._by_size.values():
                times.mean_ns *= factor
            ratios.clear()
            self.shifts += 1
            return
        if len(ratios) > _WINDOW:
            del ratios[0]
        if len(ratios) >= _FEW:
            self.spread = max(1.0, sorted(ratios)[round(_QUANTILE * (len(ratios) - 1))])

    def forget_stale(self, now_ns: int) -> None:
        """Forget sizes without an execution in the last _STALE_NS, unless all sizes are stale."""
        stale = [
            step for step, times in self._by_size.items() if now_ns - times.seen_ns > _STALE_NS
        ]
        if stale and len(stale) < len(self._by_size):
            for step in stale:
                del self._by_size[step]
            self._sizes = sorted(step for step, times in self._by_size.items() if times.executions)

    def mean_ns(self, size: int) -> float:
        """Return a batch's expected time, inter- or extrapolated; 0.0 if no size was measured."""
        sizes = self._sizes
        if not sizes:
            return 0.0
        place = bisect_left(sizes, size)
        if place == 0:
            # A smaller batch may take as long as this size.
            return self._mean(sizes[0])
        if place < len(sizes):
            below, above = sizes[place - 1], sizes[place]
            return _on_line(size, below, self._mean(below), above, self._mean(above))
        lowest, highest = sizes[0], sizes[-1]
        least, most = self._mean(lowest), self._mean(highest)
        return (
            most if lowest == highest else max(most, _on_line(size, lowest, least, highest, most))
        )

    def _mean(self, step: int) -> float:
        return self._by_size[step].mean_ns


def _on_line(size: int, below: int, low: float, above: int, high: float) -> float:
    return low + (high - low) * (size - below) / (above - below)
