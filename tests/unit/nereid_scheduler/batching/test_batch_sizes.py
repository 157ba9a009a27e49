"""Bounds of batches by what they have cost, and where the batcher cuts."""

from collections.abc import Callable

import pytest

from nereid_scheduler.batching.batch_sizes import BatchSizes
from nereid_scheduler.batching.batcher import DynamicBatcher
from tests.support.scheduler.batching import dynamic, enqueue, next_entries
from tests.support.scheduler.samples import entry_of

MS = 1_000_000
KEY = ("shape",)


def _serve(sizes: BatchSizes, cost_ns: Callable[[int], float], waiting: int, batches: int) -> int:
    """A lone request, then batches of all that waits, as far as the bounds let them; the size of
    the last one.
    """
    size = 1
    sizes.record(KEY, 1, int(cost_ns(1)))
    for _ in range(batches):
        size = min(waiting, sizes.bounds.get(KEY, waiting))
        sizes.record(KEY, size, int(size * cost_ns(size)))
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
    assert _serve(BatchSizes(), cost_ns, waiting=16, batches=128) == size


def test_short_executions_are_not_bounded() -> None:
    sizes = BatchSizes()
    assert _serve(sizes, lambda size: 1000.0 * size, waiting=16, batches=128) == 16
    assert not sizes.bounds


def test_smaller_sizes_are_not_tried_once_they_cost_more() -> None:
    sizes, tried = BatchSizes(), set()
    sizes.record(KEY, 1, 40 * MS)
    for _ in range(200):
        size = min(32, sizes.bounds.get(KEY, 32))
        tried.add(size)
        sizes.record(KEY, size, size * {32: 35, 16: 38}[size] * MS)
    assert tried == {32, 16}


def test_a_size_that_was_dearer_is_tried_again() -> None:
    sizes = BatchSizes()
    assert _serve(sizes, _dearest_at_16, waiting=16, batches=128) == 4
    assert _serve(sizes, lambda size: (10 + 20 / size) * MS, waiting=16, batches=3000) == 16


@pytest.mark.parametrize("lone_ms", [0, 13])
def test_smaller_sizes_are_not_tried_where_larger_ones_pay(lone_ms: int) -> None:
    sizes = BatchSizes()
    if lone_ms:
        sizes.record(KEY, 1, lone_ms * MS)
    for _ in range(100):
        sizes.record(KEY, 16, 160 * MS)
        assert not sizes.bounds


def test_few_requests_try_nothing() -> None:
    sizes = BatchSizes()
    _serve(sizes, _dearest_at_16, waiting=1, batches=64)
    assert not sizes.bounds


def test_shapes_are_bounded_apart_and_in_number() -> None:
    sizes = BatchSizes()
    for number in range(1000):
        for size in (1, *[16] * 8, 8):
            sizes.record((number,), size, size * 10 * MS)
    assert len(sizes.bounds) == 64


def test_a_batch_ends_at_its_bound() -> None:
    batcher = dynamic("preferred_batch_size: 64", max_batch_size=64)
    assert isinstance(batcher, DynamicBatcher)
    batcher.bounds["a"] = 2
    entries = enqueue(batcher, *(entry_of(key=key) for key in "aabbba"))
    batcher.form_batches(0, 1)
    assert next_entries(batcher) == entries[:2]
    assert next_entries(batcher) == entries[2:5]
    assert next_entries(batcher) == entries[5:]
