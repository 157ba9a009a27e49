"""Cost of a request in batches of one size, averaged over the batches that were executed.

Pure: measured durations in, an average out. Knows no queue and no bound; its callers compare sizes.
"""

from __future__ import annotations

from typing import Final

# A size is compared once it has this many measured batches. The mean spans about as many.
_FEWEST: Final = 8
_WEIGHT: Final = 0.125
# A size is tried again after this many batches of any size without one of its own.
_STALE: Final = 256


class SizeCost:
    """A moving average of what one request costs in batches of one size."""

    __slots__ = ("_measured_at", "cost_ns", "count")

    def __init__(self) -> None:
        # Cost of one request; 0 means not measured.
        self.cost_ns = 0.0
        self.count = 0
        self._measured_at = 0

    def record(self, cost_ns: float, batches: int) -> None:
        """Record the cost of each request of a batch.

        batches: how many batches there have been, of any size.
        """
        self.count += 1
        self._measured_at = batches
        # The first few measurements have equal weights.
        self.cost_ns += max(_WEIGHT, 1 / self.count) * (cost_ns - self.cost_ns)

    def is_due(self, batches: int) -> bool:
        """Return whether this size should be tried: it has few measurements, or no recent one."""
        return self.count < _FEWEST or batches - self._measured_at >= _STALE
