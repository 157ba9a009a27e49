"""Cost of a request in batches of one size, averaged over the batches that were executed."""

from __future__ import annotations

from typing import Final

# Number of measurements before sizes are compared, and the weight of the newest.
_FEWEST: Final = 8
_WEIGHT: Final = 0.125
# A size is tried again after this many batches of other sizes.
_STALE: Final = 256


class SizeCost:
    """Moving average of the cost of a request in batches of one size."""

    __slots__ = ("_measured_at", "cost_ns", "count")

    def __init__(self) -> None:
        # Nanoseconds; 0 until a batch was measured.
        self.cost_ns = 0.0
        self.count = 0
        self._measured_at = 0

    def record(self, cost_ns: float, batches: int) -> None:
        """Record a batch of this size; cost_ns: per request. batches: of all sizes so far."""
        self.count += 1
        self._measured_at = batches
        self.cost_ns += max(_WEIGHT, 1 / self.count) * (cost_ns - self.cost_ns)

    def is_due(self, batches: int) -> bool:
        """Return whether this size has few measurements, or no recent one."""
        return self.count < _FEWEST or batches - self._measured_at >= _STALE
