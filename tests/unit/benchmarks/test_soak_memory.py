"""Growth of a process' memory over a long run.

Kept as a test of an oracle: growth that is overlooked lets every soak pass.
"""

import os
from typing import Any

import pytest

from benchmarks.soak.memory import growth_of, memory_of, slope


def pieces(**kib: list[int | None]) -> list[dict[str, Any]]:
    """A piece for each sample; None: the process was not there."""
    return [
        {
            "requests": 1000 * (number + 1),
            "memory": {
                name: {"anonymous": samples[number]}
                for name, samples in kib.items()
                if samples[number] is not None
            },
        }
        for number in range(len(next(iter(kib.values()))))
    ]


@pytest.mark.parametrize(
    ("points", "expected"),
    [([], 0), ([(1, 5)], 0), ([(0, 1), (10, 21)], 2), ([(0, 3), (1, 3), (2, 3)], 0)],
)
def test_the_slope_of_the_line_through_the_points(
    points: list[tuple[float, float]], expected: float
) -> None:
    assert slope(points) == expected


def test_the_first_tenth_does_not_count() -> None:
    growth = growth_of(pieces(filling=[10, *[50] * 9], leaking=list(range(100, 200, 10))))
    assert growth["filling"]["grown_kib"] == growth["filling"]["kib_per_100k_requests"] == 0
    assert growth["leaking"] == {
        "anonymous_kib": 110,
        "grown_kib": 80,
        "grown_percent": 72.73,
        "kib_per_100k_requests": 1000.0,
    }


def test_a_process_that_was_restarted_is_left_out() -> None:
    assert set(growth_of(pieces(kept=[1, 1, 1], ended=[1, 1, None]))) == {"kept"}


def test_the_memory_of_this_process() -> None:
    memory = memory_of(os.getpid())
    assert memory is not None
    assert memory.rss >= memory.pss >= memory.uss > 1000
    assert memory.rss >= memory.anonymous > 1000
    # No process can have this id.
    assert memory_of(1 << 22 | 1) is None
