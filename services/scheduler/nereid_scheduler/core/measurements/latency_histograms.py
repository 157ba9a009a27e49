"""Histograms of one version's latencies since the load, and what its last 30 minutes were like."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_scheduler.core.requests.execution import Execution

BOUNDS_US: Final = [
    *(100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000),
    *(1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 60_000_000),
]
WINDOW_MINUTES: Final = 30
_MINUTE_NS: Final = 60_000_000_000
_BUCKETS: Final = len(BOUNDS_US) + 1
# By a duration's bit length: the bounds below all durations of this length, and the only other
# bound that they may exceed. bisect takes three times as many instructions.
_BELOW: Final = [sum(bound * 1000 < 1 << bits >> 1 for bound in BOUNDS_US) for bits in range(65)]
_BOUND_NS: Final = [1000 * [*BOUNDS_US, 1 << 64][below] for below in _BELOW]


def _bucket(duration_ns: int) -> int:
    bits = duration_ns.bit_length()
    below = _BELOW[bits]
    return below + 1 if duration_ns > _BOUND_NS[bits] else below


class RecentLoad(NamedTuple):
    """Outcomes of the last minutes, and quantiles of the executed requests' durations."""

    seconds: float
    requests: int
    failures: int
    refused: int
    p50_us: float
    p95_us: float
    p99_us: float


NO_LOAD: Final = RecentLoad(0.0, 0, 0, 0, 0.0, 0.0, 0.0)


class LatencyHistograms:
    """Counts of requests by the bucket of their whole duration and of each phase.

    About 14 KB per version, once requests have come in each of 30 minutes.
    """

    def __init__(self) -> None:
        self.request = [0] * _BUCKETS
        self.queue = [0] * _BUCKETS
        self.compute_input = [0] * _BUCKETS
        self.compute_infer = [0] * _BUCKETS
        self.compute_output = [0] * _BUCKETS
        self._failures = 0
        self._refused = 0
        # Requests of `request` to which the model itself has responded with an error.
        self._error_responses = 0
        # The minute and its state before its first request, for minutes that had requests. A state
        # is `request`, and then the failed and refused requests, and the error responses.
        self._minutes: list[tuple[int, Sequence[int]]] = []
        self._minute_ends_ns = 0
        self._began_ns = 0

    def record_request(self, request_ns: int, ended_ns: int) -> None:
        """Count the whole duration of a successful request."""
        if ended_ns >= self._minute_ends_ns:
            self._begin_minute(ended_ns)
        self.request[_bucket(request_ns)] += 1

    def record_queue(self, queue_ns: int) -> None:
        """Count the time of a successful request in the queue."""
        self.queue[_bucket(queue_ns)] += 1

    def record_compute(self, execution: Execution, times: int) -> None:
        """Count an execution once for each of its successful requests."""
        self.compute_input[_bucket(execution.compute_input_ns)] += times
        self.compute_infer[_bucket(execution.compute_infer_ns)] += times
        self.compute_output[_bucket(execution.compute_output_ns)] += times

    def record_failure(self, now_ns: int) -> None:
        """Count a request that failed, and was not cancelled."""
        if now_ns >= self._minute_ends_ns:
            self._begin_minute(now_ns)
        self._failures += 1

    def record_refusal(self, now_ns: int) -> None:
        """Count a refused request."""
        if now_ns >= self._minute_ends_ns:
            self._begin_minute(now_ns)
        self._refused += 1

    def record_error_response(self, now_ns: int) -> None:
        """Count a request as failed whose duration counts: its model responds with an error."""
        if now_ns >= self._minute_ends_ns:
            self._begin_minute(now_ns)
        self._error_responses += 1

    def recent(self, now_ns: int, minutes: int = WINDOW_MINUTES) -> RecentLoad | None:
        """Return what the last minutes were like; `None` if they had no request.

        The present minute is one of them.
        """
        first = now_ns // _MINUTE_NS - minutes + 1
        for minute, before in self._minutes:
            if minute >= first:
                began_ns = max(first * _MINUTE_NS, self._began_ns)
                return _load(before, self._state(), (now_ns - began_ns) / 1e9)
        return None

    def by_minute(self, now_ns: int) -> list[tuple[int, RecentLoad]]:
        """Return the load of each minute that had requests, with its age in minutes."""
        now = now_ns // _MINUTE_NS
        states = [*self._minutes, (now, self._state())]
        return [
            (now - minute, _load(before, after, 60.0))
            for (minute, before), (_, after) in pairwise(states)
            if now - minute < WINDOW_MINUTES
        ]

    def _state(self) -> Sequence[int]:
        return array("Q", [*self.request, self._failures, self._refused, self._error_responses])

    def _begin_minute(self, now_ns: int) -> None:
        minute = now_ns // _MINUTE_NS
        self._minute_ends_ns = (minute + 1) * _MINUTE_NS
        if not self._minutes:
            self._began_ns = now_ns
        self._minutes.append((minute, self._state()))
        while self._minutes[0][0] <= minute - WINDOW_MINUTES:
            del self._minutes[0]


def _load(before: Sequence[int], after: Sequence[int], seconds: float) -> RecentLoad:
    grown = [now - then for now, then in zip(after, before, strict=True)]
    counts = grown[:_BUCKETS]
    failures, refused, errors = grown[_BUCKETS:]
    p50, p95, p99 = (quantile_us(counts, share) for share in (0.5, 0.95, 0.99))
    return RecentLoad(seconds, sum(counts) - errors, failures + errors, refused, p50, p95, p99)


def quantile_us(counts: Sequence[int], share: float) -> float:
    """Return a quantile by linear interpolation in its bucket, as Prometheus does; 0 for none."""
    rank = share * sum(counts)
    below = 0
    lower = 0
    for bound, count in zip(BOUNDS_US, counts, strict=False):
        if count and below + count >= rank:
            return lower + (bound - lower) * (rank - below) / count
        below += count
        lower = bound
    return float(lower) if rank else 0.0
