"""Computes when the mock server's responses are due."""

# layout: pure

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stalls:
    """Periods without service; every_ns 0 means only one, for_ns 0 none."""

    after_ns: int = 0
    for_ns: int = 0
    every_ns: int = 0

    def next_stall(self, since_ns: int) -> tuple[int, int] | None:
        """Return start and end of the first stall that is not over at this time, or `None`."""
        if not self.for_ns:
            return None
        start_ns = self.after_ns
        if self.every_ns and since_ns >= start_ns + self.for_ns:
            missed = (since_ns - start_ns - self.for_ns) // self.every_ns + 1
            start_ns += missed * self.every_ns
        end_ns = start_ns + self.for_ns
        return None if since_ns >= end_ns else (start_ns, end_ns)


class ServiceTimes:
    """Serves up to `concurrency` requests at a time, in order of arrival. Each takes a set time."""

    def __init__(
        self,
        delay_ns: int,
        *,
        jitter_ns: int = 0,
        concurrency: int = 0,
        stalls: Stalls = Stalls(),
        seed: int = 0,
    ) -> None:
        """Serve in delay_ns, plus or minus up to jitter_ns; concurrency 0 serves all at once."""
        self._delay_ns = delay_ns
        self._jitter_ns = jitter_ns
        self._concurrency = concurrency
        self._stalls = stalls
        self._random = random.Random(seed)  # noqa: S311 (no secret)
        self._first_ns = -1
        # End times of the latest requests, at most as many as are served at a time.
        self._ends_ns: list[int] = []

    def serve(self, now_ns: int) -> tuple[int, int]:
        """Return when the service of a request that arrives now begins, and when it ends."""
        if self._first_ns < 0:
            self._first_ns = now_ns
        work_ns = self._delay_ns
        if self._jitter_ns:
            work_ns += round(self._random.uniform(-self._jitter_ns, self._jitter_ns))
        start_ns = now_ns
        if self._concurrency and len(self._ends_ns) >= self._concurrency:
            start_ns = max(now_ns, heapq.heappop(self._ends_ns))
        end_ns = self._end_ns(start_ns - self._first_ns, max(0, work_ns)) + self._first_ns
        if self._concurrency:
            heapq.heappush(self._ends_ns, end_ns)
        return start_ns, end_ns

    def _end_ns(self, at_ns: int, work_ns: int) -> int:
        """Return when work ends if it begins at this time and pauses during stalls."""
        while (stall := self._stalls.next_stall(at_ns)) is not None:
            start_ns, stall_end_ns = stall
            if at_ns < start_ns:
                if at_ns + work_ns <= start_ns:
                    break
                work_ns -= start_ns - at_ns
            at_ns = stall_end_ns
        return at_ns + work_ns
