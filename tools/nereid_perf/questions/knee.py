"""Finds the knee of a curve of rate against latency: the level with the most rate per latency.

The measure is Kleinrock's power (1979). Kneedle was not chosen: its knee moves with the ends of the
measured range, and it needs a smooth curve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid_perf.questions.metrics import error_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_perf.measurement import LoadLevel, Measurement
    from nereid_perf.questions.metrics import Metric

# With a larger share of failures, a level lies beyond the knee.
_MAX_ERRORS: Final = 0.01
_MIN_LEVELS: Final = 3


@dataclass(frozen=True, slots=True)
class Knee:
    """The knee of a curve; is_inside: levels on both sides were measured."""

    level: LoadLevel
    rate: float
    latency_us: float
    is_inside: bool


def find_knee(measurements: Sequence[Measurement], latency: Metric) -> Knee | None:
    """Return the knee, or `None` with fewer than three usable levels.

    If a level was measured several times, its best measurement counts.
    """
    points = [
        (found.requests_per_s / us, found, us)
        for found in measurements
        if error_share(found) <= _MAX_ERRORS and found.requests
        if (us := latency.value(found))
    ]
    values = {found.level.value for _, found, _ in points}
    if len(values) < _MIN_LEVELS:
        return None
    # Among equally good levels, take the one with less load.
    _, best, us = max(points, key=lambda point: (point[0], -point[1].level.value))
    measured = {found.level.value for found in measurements}
    is_inside = min(measured) < best.level.value < max(measured)
    return Knee(best.level, best.requests_per_s, us, is_inside)
