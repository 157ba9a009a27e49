"""Measures each level of a range, or searches one for the highest below a latency threshold."""

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
    """A latency that a level may reach."""

    metric: Metric
    most_us: float

    def is_met(self, measurement: Measurement) -> bool:
        """No: nothing was measured."""
        value = self.metric.value(measurement)
        return value is not None and value <= self.most_us


def sweep(levels: LevelRange, threshold: Threshold | None = None) -> Question[list[Measurement]]:
    """Each level; up to the first that misses the threshold, which is among the results."""
    found = []
    for level in levels.levels():
        found.append((yield level))
        if threshold is not None and not threshold.is_met(found[-1]):
            break
    return found


def repeat(levels: LevelRange, rounds: int) -> Question[list[Measurement]]:
    """Each level in each round: what drifts meanwhile touches all levels alike."""
    found = []
    for _ in range(rounds):
        for level in levels.levels():
            measurement = yield level
            found.append(measurement)
    return found


def binary_search(levels: LevelRange, threshold: Threshold) -> Question[list[Measurement]]:
    """perf_analyzer's: both ends, then halves until as near as the step. The end must be given.

    Ends at once when the start misses the threshold or the end meets it.
    """
    assert levels.end is not None, "the settings refuse a search without an end"
    low, high = levels.start, levels.end
    found = [(yield LoadLevel(levels.kind, low))]
    if not threshold.is_met(found[-1]) or low == high:
        return found
    found.append((yield LoadLevel(levels.kind, high)))
    if threshold.is_met(found[-1]):
        return found
    while high - low > levels.step:
        middle = levels.between(low, high)
        found.append((yield LoadLevel(levels.kind, middle)))
        if threshold.is_met(found[-1]):
            low = middle
        else:
            high = middle
    return found
