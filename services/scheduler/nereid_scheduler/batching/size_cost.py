"""What a request costs in batches of one size, as they have taken.

Pure: what batches took in, an average out.
"""

from __future__ import annotations

from typing import Final

# Batches of a size before it is compared, and about how many its mean spans.
_FEWEST: Final = 8
_WEIGHT: Final = 0.125
# Batches, of any size, after which it is tried again.
_STALE: Final = 256


class SizeCost:
    """A moving average."""

    __slots__ = ("_measured_at", "cost_ns", "count")

    def __init__(self) -> None:
        # Of a request; 0: not measured.
        self.cost_ns = 0.0
        self.count = 0
        self._measured_at = 0

    def record(self, cost_ns: float, batches: int) -> None:
        """A batch took so long for each request. batches: how many there were, of any size."""
        self.count += 1
        self._measured_at = batches
        # A mean of all while there are few.
        self.cost_ns += max(_WEIGHT, 1 / self.count) * (cost_ns - self.cost_ns)

    def is_due(self, batches: int) -> bool:
        """Whether such batches are to be tried: there were few, or none of late."""
        return self.count < _FEWEST or batches - self._measured_at >= _STALE
