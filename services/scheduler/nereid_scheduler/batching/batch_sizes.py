"""Limits how many requests of one shape a batch has, by the measured costs of batches on CPUs.

Large tensors leave the processor's caches: with MiniLM, a sentence of 128 tokens costs 9% more in a
batch of 16 than in a batch of 4. So smaller batches are tried now and then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_scheduler.batching.forming_rules import UNLIMITED
from nereid_scheduler.batching.size_cost import SizeCost

if TYPE_CHECKING:
    from collections.abc import Hashable

# Cheaper requests get no limit: large batches spread the fixed cost of an execution.
_MIN_NS: Final = 500_000
# Costs that differ by less than this factor count as equal; the larger size is preferred.
_EQUAL: Final = 1.02
# Smaller batches are tried only if a lone request costs at most this many times as much as a
# request in the largest batches.
_PAYS: Final = 1.25
_MAX_SHAPES: Final = 64


class _Shape:
    __slots__ = ("batches", "bound", "sizes")

    def __init__(self) -> None:
        self.batches = 0
        self.bound = UNLIMITED
        # `sizes[n]`: cost of a request in batches of 2**n to 2**(n + 1) - 1 requests.
        self.sizes: list[SizeCost] = []

    def record(self, requests: int, cost_ns: float) -> None:
        self.batches += 1
        index = requests.bit_length() - 1
        while len(self.sizes) <= index:
            self.sizes.append(SizeCost())
        self.sizes[index].record(cost_ns, self.batches)
        self.bound = self._choose()

    def _choose(self) -> int:
        sizes = self.sizes
        last = len(sizes) - 1
        alone = sizes[0]
        if sizes[last].is_due(self.batches) or not alone.count:
            return UNLIMITED
        if alone.cost_ns > _PAYS * sizes[last].cost_ns:
            return UNLIMITED
        cheapest = last
        for index in range(last - 1, -1, -1):
            if sizes[index].is_due(self.batches):
                return 1 << index
            if sizes[index].cost_ns > sizes[index + 1].cost_ns * _EQUAL:
                break
            if sizes[index].cost_ns * _EQUAL < sizes[cheapest].cost_ns:
                cheapest = index
        return UNLIMITED if cheapest == last else 1 << cheapest


class BatchSizes:
    """Maximum numbers of requests in the batches of one model. Key: a shape."""

    __slots__ = ("_shapes", "bounds")

    def __init__(self) -> None:
        self._shapes: dict[Hashable, _Shape] = {}
        # A shape without a limit has no entry.
        self.bounds: dict[Hashable, int] = {}

    def record(self, key: Hashable, requests: int, taken_ns: int) -> None:
        """Record a batch's time on a CPU, round trip included. Each request must have one row."""
        cost_ns = taken_ns / requests
        if cost_ns < _MIN_NS:
            return
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _MAX_SHAPES:
                oldest = next(iter(self._shapes))
                del self._shapes[oldest]
                self.bounds.pop(oldest, None)
            shape = self._shapes[key] = _Shape()
        shape.record(requests, cost_ns)
        if shape.bound == UNLIMITED:
            self.bounds.pop(key, None)
        else:
            self.bounds[key] = shape.bound
