"""How long batches wait while requests are refused."""

from __future__ import annotations

import pytest

from nereid_scheduler.batching.policies.target_plan import best_plan
from nereid_scheduler.batching.times.row_times import RowTimes, steps_up_to

_MS = 1_000_000
_S = 1000 * _MS


def _times() -> RowTimes:
    """10 ms for a batch, and 1 ms for each of its rows."""
    times = RowTimes()
    for size in (1, 2, 4, 8, 16, 32, 64):
        for _ in range(20):
            times.record(size, (10 + size) * _MS, 0)
    return times


@pytest.mark.parametrize(
    ("target_s", "per_s", "delay_s"),
    [
        # The target is near.
        (0.15, 1000, 0.084),
        # A batch would be full after 56 ms.
        (60, 1000, 0.112),
        (60, 100, 1.12),
        # Nothing comes.
        (60, 0, 60),
    ],
)
def test_a_batch_waits_no_longer_than_twice_until_it_would_be_full(
    target_s: float, per_s: float, delay_s: float
) -> None:
    plan = best_plan(_times(), steps_up_to(64), 2, target_s * _S, per_s / _S, 1.0)
    assert plan.size == 56
    assert plan.delay_ns == pytest.approx(delay_s * _S, rel=0.1)
    assert best_plan(_times(), steps_up_to(64), 2, target_s * _S, per_s / _S, 0.0).delay_ns == 0
