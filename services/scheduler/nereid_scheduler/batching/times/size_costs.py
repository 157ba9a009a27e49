"""Cost of a request of one shape, by the number of requests in its batch."""

from __future__ import annotations

from typing import Final

from nereid_scheduler.batching.times.moving_mean import MovingMean

# A size is compared with others once this many of its batches were measured.
_FEWEST: Final = 8
# A size is tried again after this many batches of other sizes.
_STALE: Final = 256


class SizeCost(MovingMean):
    """Average cost of a request, in nanoseconds, in batches of one range of sizes."""

    __slots__ = ("measured_at",)

    def __init__(self) -> None:
        super().__init__()
        # Number of batches of all sizes when this size was last measured.
        self.measured_at = 0


class SizeCosts:
    """Costs of one shape.

    `sizes[n]` is for batches of 2**n to 2**(n + 1) - 1 requests. The last element is for the
    largest batches so far.
    """

    __slots__ = ("_batches", "sizes")

    def __init__(self) -> None:
        self._batches = 0
        self.sizes: list[SizeCost] = []

    def record(self, requests: int, taken_ns: float) -> None:
        """Record a batch with this number of requests."""
        self._batches += 1
        index = requests.bit_length() - 1
        while len(self.sizes) <= index:
            self.sizes.append(SizeCost())
        cost = self.sizes[index]
        cost.record(taken_ns / requests)
        cost.measured_at = self._batches

    def is_due(self, index: int) -> bool:
        """Return whether `sizes[index]` has too few measurements, or no recent one."""
        if index >= len(self.sizes):
            return True
        cost = self.sizes[index]
        return cost.count < _FEWEST or self._batches - cost.measured_at >= _STALE

    def taken_ns(self, requests: int) -> float:
        """Return the expected time of a batch by the nearest measured size; 0 without one."""
        index = requests.bit_length() - 1
        nearest, distance = None, len(self.sizes) + index
        for place, cost in enumerate(self.sizes):
            if cost.count and abs(place - index) < distance:
                nearest, distance = cost, abs(place - index)
        return 0.0 if nearest is None else requests * nearest.value
