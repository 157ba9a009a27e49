"""Cost of a request in batches of one size, averaged over the batches that were executed.

The module is pure: measured durations are arguments, and an average is the result. Its callers
compare the sizes.
"""

from __future__ import annotations

from typing import Final

# A size is compared with others once this many batches of the size were measured. The moving
# average covers about the same number of batches.
_FEWEST: Final = 8
_WEIGHT: Final = 0.125
# A size is tried again if this many batches of other sizes came after its last batch.
_STALE: Final = 256


class SizeCost:
    """Moving average of the cost of a request in batches of one size."""

    __slots__ = ("_measured_at", "cost_ns", "count")

    def __init__(self) -> None:
        # Average cost of a request in nanoseconds; 0 until a batch was measured.
        self.cost_ns = 0.0
        self.count = 0
        self._measured_at = 0

    def record(self, cost_ns: float, batches: int) -> None:
        """Record a batch of this size.

        cost_ns: time of the batch divided by its number of requests. batches: number of batches of
        any size so far.
        """
        self.count += 1
        self._measured_at = batches
        # The first few measurements have equal weights.
        self.cost_ns += max(_WEIGHT, 1 / self.count) * (cost_ns - self.cost_ns)

    def is_due(self, batches: int) -> bool:
        """Return whether this size should be tried: it has few measurements, or no recent one."""
        return self.count < _FEWEST or batches - self._measured_at >= _STALE
