"""Moving average in which the first measurements have equal weights."""

from __future__ import annotations

from typing import Final

# Weight of the newest measurement, once there are enough.
_WEIGHT: Final = 0.125


class MovingMean:
    """Average of a series of measurements; `value` is 0 while `count` is 0."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def record(self, measured: float) -> None:
        """Add a measurement."""
        self.count += 1
        self.value += max(_WEIGHT, 1 / self.count) * (measured - self.value)
