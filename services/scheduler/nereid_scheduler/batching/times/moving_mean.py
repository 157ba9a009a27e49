"""Moving average in which the first measurements have equal weights."""

from __future__ import annotations

from typing import Final

# Weight of the newest measurement, once there are more than the first ones.
_WEIGHT: Final = 0.125
_FIRST: Final = 8


class MovingMean:
    """Average of a series of measurements; `value` is 0 while `count` is 0."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def record(self, measured: float) -> None:
        """Add a measurement."""
        self.count += 1
        weight = _WEIGHT if self.count > _FIRST else 1 / self.count
        self.value += weight * (measured - self.value)
