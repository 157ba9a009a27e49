"""A machine that stood still is noticed, and what follows from it is none of the mesh's faults."""

from __future__ import annotations

import pytest

from tests.torment.disruptions import MACHINE_PAUSE
from tests.torment.machine import PauseWatch


@pytest.mark.parametrize(
    ("times_s", "expected"),
    [
        ([1.0, 1.05, 1.2, 1.9, 2.0], []),
        ([1.0, 1.05, 4.05, 4.1], [(1.05, 4.05)]),
        ([1.0, 2.0, 2.05, 5.0], [(1.0, 2.0), (2.05, 5.0)]),
    ],
)
def test_times_at_which_nothing_ran_are_pauses(
    times_s: list[float], expected: list[tuple[float, float]]
) -> None:
    clock = iter(times_s)
    watch = PauseWatch(lambda: next(clock))
    waits = iter([False] * (len(times_s) - 1) + [True])
    watch.watch(lambda _: next(waits))
    assert [(each.began_s, each.ended_s) for each in watch.pauses] == expected
    assert {each.disruption.kind for each in watch.pauses} <= {MACHINE_PAUSE}


def test_a_watch_ends_with_its_block() -> None:
    watch = PauseWatch(lambda: 1.0)
    with watch.watching():
        pass
    assert watch.pauses == []
