"""Histograms of latencies, and what the last minutes were like."""

from __future__ import annotations

from bisect import bisect_left

import pytest

from nereid.observability.metrics import BACKEND, CANCELED
from nereid_scheduler.core.measurements.latency_histograms import (
    BOUNDS_US,
    WINDOW_MINUTES,
    LatencyHistograms,
    quantile_us,
)
from nereid_scheduler.core.requests.entry import Batch, Entry
from nereid_scheduler.core.requests.execution import Execution
from tests.support.scheduler.samples import end_whole, entry_of, records_of

MS = 1_000_000
MINUTE = 60_000 * MS


def entry(received_ns: int, enqueued_ns: int) -> Entry:
    one = entry_of(1)
    one.received_ns, one.enqueued_ns = received_ns, enqueued_ns
    return one


def in_buckets(counts: list[int]) -> dict[int, int]:
    """Counts by their bucket's upper bound in microseconds; 0: above all."""
    return {bound: count for bound, count in zip([*BOUNDS_US, 0], counts, strict=True) if count}


def test_each_request_counts_in_each_phase() -> None:
    records = records_of()
    execution = Execution(40 * MS, 45 * MS, 1, 50_000, 4 * MS, 150_000)
    failed = entry(0, 0)
    members = [entry(0, MS), entry(43 * MS, 39 * MS), failed]
    end_whole(records, Batch(members, 3, "full"), execution, [failed])
    histograms = records.statistics.histograms
    assert in_buckets(histograms.request) == {2_000: 1, 50_000: 1}
    assert in_buckets(histograms.queue) == {1_000: 1, 50_000: 1}
    assert in_buckets(histograms.compute_input) == {100: 2}
    assert in_buckets(histograms.compute_infer) == {5_000: 2}
    assert in_buckets(histograms.compute_output) == {200: 2}


@pytest.mark.parametrize("bound_us", BOUNDS_US)
def test_a_duration_equal_to_a_bound_is_below_it(bound_us: int) -> None:
    histograms = LatencyHistograms()
    for duration_ns in (bound_us * 1000 - 1, bound_us * 1000, bound_us * 1000 + 1):
        histograms.record_queue(duration_ns)
    place = BOUNDS_US.index(bound_us)
    assert histograms.queue[place : place + 2] == [2, 1]
    assert sum(histograms.queue) == 3


def test_cache_hits_count_as_requests_alone() -> None:
    statistics = records_of().statistics
    statistics.record_cache_hit(entry(0, 0), 3 * MS)
    assert in_buckets(statistics.histograms.request) == {5_000: 1}
    assert not any(statistics.histograms.queue)


def test_cancelled_requests_are_no_failures() -> None:
    statistics = records_of().statistics
    for reason in (CANCELED, BACKEND, CANCELED):
        statistics.record_failure(entry(0, 0), MS, reason)
    recent = statistics.histograms.recent(MS)
    assert recent is not None
    assert recent.failures == 1


def test_the_last_minutes() -> None:
    histograms = LatencyHistograms()
    assert histograms.recent(99 * MINUTE) is None
    began = 99 * MINUTE + 15_000 * MS
    for minute in range(40):
        for _ in range(minute + 1):
            histograms.record_request(700 * MS, began + minute * MINUTE)
    histograms.record_failure(began + 39 * MINUTE)
    histograms.record_refusal(began + 39 * MINUTE)
    now = began + 39 * MINUTE
    half_hour = histograms.recent(now)
    assert half_hour is not None
    assert half_hour.requests == sum(range(11, 41))
    assert (half_hour.failures, half_hour.refused) == (1, 1)
    assert half_hour.seconds == (WINDOW_MINUTES - 1) * 60 + 15
    five = histograms.recent(now, 5)
    assert five is not None
    assert five.requests == 36 + 37 + 38 + 39 + 40
    by_minute = histograms.by_minute(now)
    assert [age for age, _ in by_minute] == [*range(29, -1, -1)]
    assert [load.requests for _, load in by_minute] == [*range(11, 41)]
    assert histograms.recent(now + 4 * MINUTE, 5) is not None
    assert histograms.recent(now + 5 * MINUTE, 5) is None
    assert histograms.recent(now + 30 * MINUTE) is None
    assert histograms.by_minute(now + 30 * MINUTE) == []


def test_a_new_version_has_had_less_than_half_an_hour() -> None:
    histograms = LatencyHistograms()
    histograms.record_refusal(90_000 * MS)
    recent = histograms.recent(100_000 * MS)
    assert recent is not None
    assert (recent.seconds, recent.requests, recent.p99_us) == (10, 0, 0)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ({}, 0.99, 0),
        ({0: 100}, 0.5, 50),
        ({0: 50, 1: 50}, 0.75, 150),
        ({0: 98, 3: 2}, 0.99, 750),
        ({len(BOUNDS_US): 1}, 0.5, 60_000_000),
    ],
)
def test_quantiles_are_those_of_prometheus(
    values: dict[int, int], share: float, expected: float
) -> None:
    counts = [values.get(bucket, 0) for bucket in range(len(BOUNDS_US) + 1)]
    assert quantile_us(counts, share) == pytest.approx(expected)


def test_the_bucket_by_bit_length_is_the_one_that_bisect_finds() -> None:
    bounds_ns = [1000 * bound for bound in BOUNDS_US]
    near = [bound + step for bound in bounds_ns for step in (-1, 0, 1)]
    powers = [(1 << bits) + step for bits in range(1, 63) for step in (-1, 0, 1)]
    for duration_ns in (0, *near, *powers):
        histograms = LatencyHistograms()
        histograms.record_queue(duration_ns)
        assert histograms.queue.index(1) == bisect_left(bounds_ns, duration_ns), duration_ns
