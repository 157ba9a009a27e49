"""Costs of one shape by the size of its batches."""

from nereid_scheduler.batching.times.size_costs import SizeCosts

MS = 1_000_000


def test_sizes_are_kept_by_powers_of_two_and_averaged_by_request() -> None:
    costs = SizeCosts()
    costs.record(2, 8 * MS)
    costs.record(3, 18 * MS)
    assert [cost.value for cost in costs.sizes] == [0, 5 * MS]
    assert costs.taken_ns(2) == 10 * MS


def test_the_nearest_measured_size_stands_for_others() -> None:
    costs = SizeCosts()
    assert costs.taken_ns(4) == 0
    costs.record(1, 4 * MS)
    costs.record(64, 64 * MS)
    assert costs.taken_ns(3) == 12 * MS
    assert costs.taken_ns(100) == 100 * MS


def test_a_size_is_due_until_it_has_eight_batches_and_after_256_others() -> None:
    costs = SizeCosts()
    assert costs.is_due(0)
    for number in range(8):
        assert costs.is_due(1), number
        costs.record(2, MS)
    assert not costs.is_due(1)
    for _ in range(255):
        costs.record(1, MS)
    assert not costs.is_due(1)
    costs.record(1, MS)
    assert costs.is_due(1)
