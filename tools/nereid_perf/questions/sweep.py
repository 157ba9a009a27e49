"""Measures each level of a range, or searches for the highest level below a latency threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid_perf.measurement import LoadLevel

if TYPE_CHECKING:
    from nereid_perf.measurement import Measurement
    from nereid_perf.questions.levels import LevelRange
    from nereid_perf.questions.metrics import Metric
    from nereid_perf.questions.question import Question


@dataclass(frozen=True, slots=True)
class Threshold:
    """The maximum latency that a level may have."""

    metric: Metric
    most_us: float

    def is_met(self, measurement: Measurement) -> bool:
        """Return whether a measurement meets the threshold; False if there were no requests."""
        value = self.metric.value(measurement)
        return value is not None and value <= self.most_us


def sweep(levels: LevelRange, threshold: Threshold | None = None) -> Question[list[Measurement]]:
    """Measure each level, up to and including the first that misses the threshold."""
    measurements = []
    for level in levels.levels():
        measurements.append((yield level))
        if threshold is not None and not threshold.is_met(measurements[-1]):
            break
    return measurements


def repeat(levels: LevelRange, rounds: int) -> Question[list[Measurement]]:
    """Measure all levels in each round, so that drift affects all levels equally."""
    measurements = []
    for _ in range(rounds):
        for level in levels.levels():
            measurement = yield level
            measurements.append(measurement)
    return measurements


def binary_search(levels: LevelRange, threshold: Threshold) -> Question[list[Measurement]]:
    """Search as perf_analyzer does: measure both ends, then bisect until the step is reached.

    The range must have an end. The search ends if the start misses the threshold or the end meets
    it.
    """
    assert levels.end is not None, "the settings refuse a search without an end"
    low, high = levels.start, levels.end
    measurements = [(yield LoadLevel(levels.kind, low))]
    if not threshold.is_met(measurements[-1]) or low == high:
        return measurements
    measurements.append((yield LoadLevel(levels.kind, high)))
    if threshold.is_met(measurements[-1]):
        return measurements
    while high - low > levels.step:
        middle = levels.between(low, high)
        measurements.append((yield LoadLevel(levels.kind, middle)))
        if threshold.is_met(measurements[-1]):
            low = middle
        else:
            high = middle
    return measurements
