"""Intervals against sets of points."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nereid_timeline.intervals import Intervals

_TIMES = st.integers(0, 30)
_SPANS = st.lists(st.tuples(_TIMES, _TIMES), max_size=8)


def points(spans: object) -> set[int]:
    return {time for start, end in spans for time in range(start, end)}  # type: ignore[attr-defined]


@given(_SPANS, _TIMES, _TIMES)
def test_what_they_cover(spans: list[tuple[int, int]], start: int, end: int) -> None:
    intervals, covered = Intervals(spans), points(spans)
    assert points(intervals) == covered
    assert intervals.total == len(covered)
    assert bool(intervals) == bool(covered)
    assert intervals.within(start, end) == len(covered & set(range(start, end)))


@given(_SPANS, _SPANS, _TIMES, _TIMES)
def test_common_and_gaps(
    spans: list[tuple[int, int]], others: list[tuple[int, int]], start: int, end: int
) -> None:
    intervals = Intervals(spans)
    assert points(intervals.common(Intervals(others))) == points(spans) & points(others)
    assert points(intervals.gaps(start, end)) == set(range(start, end)) - points(spans)
