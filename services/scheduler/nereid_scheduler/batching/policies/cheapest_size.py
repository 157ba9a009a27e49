"""Limits how many requests of one shape a batch has, by the measured costs of batches on CPUs.

Larger batches make each row cheaper, until the batch's tensors no longer fit the processor's
caches: with MiniLM, a sentence of 128 tokens costs 9% more in a batch of 16 than in a batch of 4.
If a request that runs alone costs little more than one in a large batch, batches of half the size,
a quarter of it and so on are tried now and then, as long as they cost no more for each request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nereid_scheduler.batching.times.size_costs import SizeCosts

# No limit is set for requests that cost less than this: large batches spread the fixed cost of an
# execution over many of them.
_MIN_NS: Final = 500_000
# Two sizes whose costs differ by less than this factor count as equal; the larger one is preferred.
_EQUAL: Final = 1.02
# Smaller batches are not tried if a request that runs alone costs more than this many times as much
# as a request in the largest batches.
_PAYS: Final = 1.25


def cheapest_size(costs: SizeCosts) -> int:
    """Return the maximum number of requests in a batch; 0 means no limit."""
    sizes = costs.sizes
    last = len(sizes) - 1
    alone = sizes[0]
    if (
        sizes[last].value < _MIN_NS
        or costs.is_due(last)
        or not alone.count
        or alone.value > _PAYS * sizes[last].value
    ):
        return 0
    cheapest = last
    for index in range(last - 1, -1, -1):
        # Go down from the largest size, and stop where a request costs more in a smaller batch.
        if costs.is_due(index):
            return 1 << index
        if sizes[index].value > sizes[index + 1].value * _EQUAL:
            break
        if sizes[index].value * _EQUAL < sizes[cheapest].value:
            cheapest = index
    return 0 if cheapest == last else 1 << cheapest
