"""Outcomes of clients' requests beside those of copies for a shadow."""

from __future__ import annotations

from nereid.observability.metrics import BACKEND, CANCELED
from nereid_scheduler.core.measurements.client_outcomes import ClientOutcomes
from nereid_scheduler.core.measurements.fine_durations import bucket_of
from nereid_scheduler.core.measurements.statistics import ModelStatistics
from nereid_scheduler.core.requests.entry import Batch, Entry
from nereid_scheduler.core.requests.execution import Execution
from tests.support.scheduler.samples import entry_of

MS = 1_000_000


def entry(received_ms: int, *, is_copy: bool = False) -> Entry:
    one = entry_of(1)
    one.received_ns = received_ms * MS
    one.request.is_shadow = is_copy
    return one


def execute(statistics: ModelStatistics, one: Entry, ended_ms: int) -> None:
    execution = Execution(one.received_ns, ended_ms * MS, 0, 0, 0, 0)
    statistics.record_execution(Batch([one], 1, "single"), execution)
    statistics.record_success(one, execution, ended_ms * MS)


def durations(clients: ClientOutcomes, *expected_ms: int) -> bool:
    """Whether these are the durations that were counted."""
    counts = [0] * len(clients.durations)
    for each in expected_ms:
        counts[bucket_of(each * MS)] += 1
    return clients.durations == counts


def test_outcomes_are_counted_only_while_somebody_needs_them() -> None:
    statistics = ModelStatistics()
    execute(statistics, entry(0), 5)
    clients = statistics.measure_clients()
    assert statistics.measure_clients() is clients
    execute(statistics, entry(10), 15)
    statistics.record_cache_hit(entry(20), 21 * MS)
    statistics.end_measuring_clients()
    execute(statistics, entry(30), 35)
    assert clients.requests == 2
    assert durations(clients, 5, 1)
    assert statistics.measure_clients().requests == 0


def test_failed_and_refused_requests_and_error_responses_are_failures() -> None:
    statistics = ModelStatistics()
    clients = statistics.measure_clients()
    execute(statistics, entry(0), 5)
    statistics.record_error_response(entry(0), 5 * MS)
    statistics.record_failure(entry(0), 5 * MS, BACKEND)
    statistics.record_failure(entry(0), 5 * MS, CANCELED)
    statistics.record_refusal(entry(0), 5 * MS)
    assert (clients.requests, clients.failures) == (3, 3)
    assert durations(clients, 5)


def test_copies_are_no_requests_and_those_that_meet_them_have_no_duration() -> None:
    statistics = ModelStatistics()
    clients = statistics.measure_clients()
    copy = entry(0, is_copy=True)
    execute(statistics, copy, 100)
    statistics.record_error_response(copy, 100 * MS)
    statistics.record_failure(copy, 100 * MS, BACKEND)
    statistics.record_refusal(copy, 100 * MS)
    # It waited for the copy.
    execute(statistics, entry(99), 110)
    execute(statistics, entry(100), 105)
    # Copies of other instances may be reported later.
    execute(statistics, entry(50, is_copy=True), 90)
    execute(statistics, entry(101), 104)
    assert (clients.requests, clients.failures) == (3, 0)
    assert durations(clients, 5, 3)
