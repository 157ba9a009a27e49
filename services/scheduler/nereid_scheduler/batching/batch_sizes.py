"""Bounds on the requests of one shape in a batch, by what batches have cost on CPUs.

More rows in a batch make each one cheaper until its tensors no longer fit the processor's caches:
16 sentences of 128 tokens cost MiniLM 9% more each than 4 do. So where a lone request costs
little more, batches of half the size, of a quarter and so on are tried now and then, as long as
they are no dearer, and the cheapest size is kept.

Pure: measured durations in, bounds for the batcher out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_scheduler.batching.forming_rules import UNLIMITED
from nereid_scheduler.batching.size_cost import SizeCost

if TYPE_CHECKING:
    from collections.abc import Hashable

# Cheaper requests are left alone: large batches should spread the fixed cost of each of them.
_MIN_NS: Final = 500_000
# Sizes whose costs differ by less than this factor count as equally good; the larger one is kept.
_EQUAL: Final = 1.02
# Where a lone request costs this many times one in the largest batches, smaller ones are not tried.
_PAYS: Final = 1.25
# Bound on the shapes of one model, since clients may send any number of them.
_MAX_SHAPES: Final = 64


class _Shape:
    """Measured costs of batches of one shape."""

    __slots__ = ("batches", "bound", "sizes")

    def __init__(self) -> None:
        self.batches = 0
        self.bound = UNLIMITED
        # `sizes[n]` has batches of 2**n requests or more, up to twice as many. The last one has the
        # largest batches that there have been.
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
            # Go from the largest size down, as long as batches become no dearer.
            if sizes[index].is_due(self.batches):
                return 1 << index
            if sizes[index].cost_ns > sizes[index + 1].cost_ns * _EQUAL:
                break
            if sizes[index].cost_ns * _EQUAL < sizes[cheapest].cost_ns:
                cheapest = index
        return UNLIMITED if cheapest == last else 1 << cheapest


class BatchSizes:
    """Bounds on the batches of one model, by shape."""

    __slots__ = ("_shapes", "bounds")

    def __init__(self) -> None:
        self._shapes: dict[Hashable, _Shape] = {}
        # Largest number of requests in a batch, by shape. Shapes without a bound are not in it.
        self.bounds: dict[Hashable, int] = {}

    def record(self, key: Hashable, requests: int, taken_ns: int) -> None:
        """Record how long a batch of one-row requests took on a CPU, the way there included."""
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
