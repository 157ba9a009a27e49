"""The model of Kubernetes' autoscaler, compared with the rules of Kubernetes' documentation.

Kept as a test of an oracle: the rehearsals judge the scheduler's metrics by this model.
"""

from __future__ import annotations

import pytest

from benchmarks.autoscaling.horizontal_autoscaler import (
    DOWN,
    UP,
    HorizontalAutoscaler,
    Metric,
    Policy,
    Rules,
    ZeroScaler,
    desired_replicas,
)

FREE = Rules(0.0, (Policy(15.0, percent=1e6), Policy(15.0, pods=1000)))
AT_ONCE = Rules(0.0, (Policy(15.0, percent=100.0),))


def autoscaler(
    least: int = 1, most: int = 100, *, up: Rules = FREE, down: Rules = AT_ONCE
) -> HorizontalAutoscaler:
    return HorizontalAutoscaler(least, most, up, down)


@pytest.mark.parametrize(
    ("metrics", "desired"),
    [
        # Twice the target: twice the replicas. Below it fewer, rounded up.
        ([Metric(200, 100)], 8),
        ([Metric(30, 100)], 2),
        ([Metric(0, 100)], 0),
        # Within a tenth of the target nothing changes.
        ([Metric(109, 100)], 4),
        ([Metric(91, 100)], 4),
        ([Metric(111, 100)], 5),
        # 6 for each of 4 replicas is 24.
        ([Metric(24, 6, per_pod=True)], 4),
        ([Metric(31, 6, per_pod=True)], 6),
        # The largest proposal counts; metrics without data only keep what there is.
        ([Metric(30, 100), Metric(200, 100)], 8),
        ([Metric(30, 100), Metric(None, 100)], 4),
        ([Metric(200, 100), Metric(None, 100)], 8),
        ([Metric(None, 100)], None),
    ],
)
def test_what_metrics_ask_of_four_replicas(metrics: list[Metric], desired: int | None) -> None:
    assert desired_replicas(metrics, 4, 4) == desired


def test_only_pods_that_are_ready_are_multiplied() -> None:
    assert desired_replicas([Metric(300, 100)], 4, 1) == 3
    # Those that start count where a metric is divided among pods.
    assert desired_replicas([Metric(24, 6, per_pod=True)], 4, 1) == 4


def test_the_bounds_hold() -> None:
    it = autoscaler(2, 5)
    assert it.recommend(0, 4, 4, [Metric(1000, 100)]) == 5
    assert it.recommend(15, 4, 4, [Metric(0, 100)]) == 2
    assert it.recommend(30, 3, 3, []) == 3


def test_it_shrinks_only_when_nothing_in_the_window_wanted_more() -> None:
    it = autoscaler(down=Rules(300.0, AT_ONCE.policies))
    assert it.recommend(0, 4, 4, [Metric(100, 100)]) == 4
    for now_s in range(15, 300, 15):
        assert it.recommend(now_s, 4, 4, [Metric(20, 100)]) == 4
    # The largest of what was wanted meanwhile.
    assert it.recommend(315, 4, 4, [Metric(10, 100)]) == 1


def test_it_grows_only_when_everything_in_the_window_wanted_more() -> None:
    it = autoscaler(up=Rules(30.0, FREE.policies))
    assert it.recommend(0, 4, 4, [Metric(100, 100)]) == 4
    assert it.recommend(15, 4, 4, [Metric(300, 100)]) == 4
    assert it.recommend(30, 4, 4, [Metric(200, 100)]) == 4
    assert it.recommend(45, 4, 4, [Metric(300, 100)]) == 8


def test_policies_bound_what_changes_within_their_period() -> None:
    it = autoscaler(up=UP)
    # Twice as many or 4 more, whichever is more.
    assert it.recommend(0, 1, 1, [Metric(9900, 100)]) == 5
    # 5 seconds later the same period still counts: no more than from 1.
    assert it.recommend(5, 5, 5, [Metric(9900, 100)]) == 5
    assert it.recommend(20, 5, 5, [Metric(9900, 100)]) == 10


def test_what_ends_within_a_period_is_bounded_as_well() -> None:
    it = autoscaler(down=Rules(0.0, DOWN.policies))
    assert it.recommend(0, 9, 9, [Metric(0, 100)]) == 4
    assert it.recommend(30, 4, 4, [Metric(0, 100)]) == 4
    assert it.recommend(61, 4, 4, [Metric(0, 100)]) == 2
    assert it.recommend(122, 2, 2, [Metric(0, 100)]) == 1


def test_the_first_replica_starts_at_once_and_the_last_ends_after_the_cool_down() -> None:
    it = ZeroScaler(cooldown_s=60)
    assert it.decide(0, 1, active=False) == 1
    assert it.decide(59, 1, active=False) == 1
    assert it.decide(60, 1, active=False) == 0
    assert it.decide(200, 0, active=False) == 0
    assert it.decide(300, 0, active=True) == 1
    # It does not undo what the horizontal autoscaler has chosen.
    assert it.decide(305, 7, active=True) == 7
    assert it.decide(364, 7, active=False) == 7
    assert it.decide(365, 7, active=False) == 0
