"""The slowest things of a window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nereid_gateway.plane.slowest import Slowest


def add(slowest: Slowest[str], duration: float, now_s: float, item: str = "") -> None:
    if slowest.accepts(duration, now_s):
        slowest.add(duration, item or f"{duration:g}")


def test_the_slowest_first_and_no_more_than_asked_for() -> None:
    slowest = Slowest[str](2)
    for duration in (3, 1, 5, 4):
        add(slowest, duration, 0)
    assert slowest.slowest(1) == ["5", "4"]
    assert not slowest.accepts(3, 1)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    slowest = Slowest[str](2)
    add(slowest, 9, 0)
    add(slowest, 1, 30)
    assert slowest.slowest(59) == ["9", "1"]
    assert slowest.slowest(61) == ["1"]
    slowest.clear()
    assert slowest.slowest(61) == []


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 3))))
def test_within_a_part_of_the_window_none_is_missed(added: list[tuple[int, float]]) -> None:
    slowest = Slowest[str](3)
    for duration, now_s in added:
        add(slowest, duration, now_s)
    expected = sorted((duration for duration, _ in added), reverse=True)[:3]
    assert [int(each) for each in slowest.slowest(3)] == expected
