"""How many requests a closed loop has in flight."""

import pytest

from nereid_perf.load.concurrency import Constant, Periodic, share_of


def test_a_constant_number_never_changes() -> None:
    constant = Constant(4)
    constant.on_end()
    assert constant.allowed == 4


def test_a_periodic_number_grows_by_a_step_after_so_many_requests_up_to_the_last() -> None:
    periodic = Periodic(2, 7, 3, 2)
    allowed = []
    for _ in range(7):
        allowed.append(periodic.allowed)
        periodic.on_end()
    assert allowed == [2, 2, 5, 5, 7, 7, 7]


@pytest.mark.parametrize(("total", "workers"), [(7, 3), (2, 4), (0, 2), (64, 1)])
def test_shares_add_up_and_differ_by_one_at_most(total: int, workers: int) -> None:
    shares = [share_of(total, each, workers) for each in range(workers)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1
