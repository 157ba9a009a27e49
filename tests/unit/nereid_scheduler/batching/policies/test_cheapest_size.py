"""Limits of batches by what they have cost."""

from collections.abc import Callable

import pytest

from nereid_scheduler.batching.policies.cheapest_size import cheapest_size
from nereid_scheduler.batching.times.size_costs import SizeCosts

MS = 1_000_000


def _serve(costs: SizeCosts, cost_ns: Callable[[int], float], waiting: int, batches: int) -> int:
    """A lone request, then batches of all that waits, as far as the limits let them; the size of
    the last one.
    """
    size = 1
    costs.record(1, cost_ns(1))
    for _ in range(batches):
        size = min(waiting, cheapest_size(costs) or waiting)
        costs.record(size, size * cost_ns(size))
    return size


def _dearest_at_16(size: int) -> float:
    return {1: 15.1, 2: 14.2, 4: 13.9, 8: 14.3}.get(size, 15.4) * MS


@pytest.mark.parametrize(
    ("cost_ns", "size"),
    [
        (_dearest_at_16, 4),
        (lambda _: 14.0 * MS, 16),
        (lambda size: 5.0 * MS + 20.0 * MS / size, 16),
        (lambda size: 5.0 * MS + size * MS, 1),
    ],
    ids=["caches", "all alike", "the larger the cheaper", "the smaller the cheaper"],
)
def test_the_cheapest_size_is_kept(cost_ns: Callable[[int], float], size: int) -> None:
    assert _serve(SizeCosts(), cost_ns, waiting=16, batches=128) == size


def test_short_executions_are_not_limited() -> None:
    costs = SizeCosts()
    assert _serve(costs, lambda size: 1000.0 * size, waiting=16, batches=128) == 16
    assert not cheapest_size(costs)


def test_smaller_sizes_are_not_tried_once_they_cost_more() -> None:
    costs, tried = SizeCosts(), set()
    costs.record(1, 40 * MS)
    for _ in range(200):
        size = min(32, cheapest_size(costs) or 32)
        tried.add(size)
        costs.record(size, size * {32: 35, 16: 38}[size] * MS)
    assert tried == {32, 16}


def test_a_size_that_was_dearer_is_tried_again() -> None:
    costs = SizeCosts()
    assert _serve(costs, _dearest_at_16, waiting=16, batches=128) == 4
    assert _serve(costs, lambda size: (10 + 20 / size) * MS, waiting=16, batches=3000) == 16


@pytest.mark.parametrize("lone_ms", [0, 13])
def test_smaller_sizes_are_not_tried_where_larger_ones_pay(lone_ms: int) -> None:
    costs = SizeCosts()
    if lone_ms:
        costs.record(1, lone_ms * MS)
    for _ in range(100):
        costs.record(16, 160 * MS)
        assert not cheapest_size(costs)


def test_few_requests_try_nothing() -> None:
    costs = SizeCosts()
    _serve(costs, _dearest_at_16, waiting=1, batches=64)
    assert not cheapest_size(costs)
