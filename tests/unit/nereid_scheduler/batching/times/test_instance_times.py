"""When a second batch may be sent to an instance that executes."""

import pytest

from nereid_scheduler.batching.times.instance_times import InstanceTimes

MS = 1_000_000


def test_nothing_is_sent_before_anything_was_measured() -> None:
    assert not InstanceTimes().may_send(0)


@pytest.mark.parametrize(
    ("execution_ms", "round_trip_ms", "elapsed_ms", "sends"),
    [
        (1, 2, 0, True),
        (4, 1, 2, False),
        (4, 1, 3, True),
        (4, 1, 10, True),
        (5, 1, 4, False),  # late binding where execution is long
        (4, 1, 21, False),  # it takes longer than expected, and who knows how long
        (1, 0, 1, False),  # nothing is gained
    ],
)
def test_a_batch_is_sent_when_it_arrives_about_when_it_is_needed(
    execution_ms: int, round_trip_ms: int, elapsed_ms: int, sends: bool
) -> None:
    times = InstanceTimes()
    times.record(execution_ms * MS, (execution_ms + round_trip_ms) * MS)
    assert times.may_send(elapsed_ms * MS) is sends


def test_measurements_are_averaged_and_waiting_batches_say_nothing_of_round_trips() -> None:
    times = InstanceTimes()
    times.record(8 * MS, 12 * MS)
    times.record(16 * MS, None)
    assert (times.execution_ns, times.round_trip_ns) == (12 * MS, 4 * MS)
    times.record(12 * MS, 20 * MS)
    assert (times.execution_ns, times.round_trip_ns) == (12 * MS, 6 * MS)
    for _ in range(10):
        times.record(12 * MS, 18 * MS)
    times.record(20 * MS, None)
    assert times.execution_ns == 13 * MS


def test_an_executor_whose_clock_runs_fast_is_no_reason_to_send() -> None:
    times = InstanceTimes()
    times.record(8 * MS, 2 * MS)
    assert times.round_trip_ns == 0
    assert not times.may_send(8 * MS)


def test_patience_outlasts_hiccups_and_grows_with_the_expected_time() -> None:
    times = InstanceTimes()
    assert times.patience_ns == 10 * MS
    times.record(1 * MS, 2 * MS)
    assert times.patience_ns == 10 * MS
    times.record(11 * MS, None)
    assert times.patience_ns == 4 * (6 + 1) * MS
