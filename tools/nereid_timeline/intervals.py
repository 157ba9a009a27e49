"""Sets of time intervals that do not overlap, with operations on them."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Intervals:
    """Time intervals in ascending order; overlapping ones are merged."""

    __slots__ = ("_before", "ends", "starts")

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        for start, end in sorted(spans):
            if end <= start:
                continue
            if self.ends and start <= self.ends[-1]:
                self.ends[-1] = max(self.ends[-1], end)
            else:
                self.starts.append(start)
                self.ends.append(end)
        lengths = map(int.__sub__, self.ends, self.starts)
        # Time covered by all intervals before each one; the last entry is the total.
        self._before = [0, *accumulate(lengths)]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.starts, self.ends, strict=True)

    def __bool__(self) -> bool:
        return bool(self.starts)

    @property
    def total(self) -> int:
        """Time that the intervals cover together."""
        return self._before[-1]

    def within(self, start: int, end: int) -> int:
        """Return how much of the span from start to end the intervals cover."""
        return self._until(end) - self._until(start) if end > start else 0

    def common(self, others: Intervals) -> Intervals:
        """Return the times that both sets cover."""
        spans = []
        few, many = (self, others) if len(self.starts) < len(others.starts) else (others, self)
        for start, end in few:
            at = max(bisect_right(many.starts, start) - 1, 0)
            while at < len(many.starts) and many.starts[at] < end:
                spans.append((max(start, many.starts[at]), min(end, many.ends[at])))
                at += 1
        return Intervals(spans)

    def gaps(self, start: int, end: int) -> Intervals:
        """Return the parts of the span from start to end that no interval covers."""
        spans, since = [], start
        for begin, stop in self:
            spans.append((since, min(begin, end)))
            since = max(since, stop)
        return Intervals([*spans, (since, end)])

    def _until(self, time: int) -> int:
        at = bisect_right(self.starts, time)
        if not at:
            return 0
        return self._before[at] - max(self.ends[at - 1] - time, 0)
