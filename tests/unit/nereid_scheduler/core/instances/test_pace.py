"""When a second batch may be sent to an instance that executes."""

import pytest

from nereid_scheduler.core.instances.pace import Pace

MS = 1_000_000


def test_nothing_is_sent_before_anything_was_measured() -> None:
    assert not Pace().may_send(0)


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
    pace = Pace()
    pace.record_batch(execution_ms * MS, (execution_ms + round_trip_ms) * MS)
    assert pace.may_send(elapsed_ms * MS) is sends


def test_measurements_are_averaged_and_waiting_batches_say_nothing_of_round_trips() -> None:
    pace = Pace()
    pace.record_batch(8 * MS, 12 * MS)
    pace.record_batch(16 * MS, None)
    assert (pace.execution_ns, pace.round_trip_ns) == (9 * MS, 4 * MS)
    pace.record_batch(9 * MS, 21 * MS)
    assert (pace.execution_ns, pace.round_trip_ns) == (9 * MS, 5 * MS)


def test_an_executor_whose_clock_runs_fast_is_no_reason_to_send() -> None:
    pace = Pace()
    pace.record_batch(8 * MS, 2 * MS)
    assert pace.round_trip_ns == 0
    assert not pace.may_send(8 * MS)


def test_patience_outlasts_hiccups_and_grows_with_the_expected_time() -> None:
    pace = Pace()
    assert pace.patience_ns == 10 * MS
    pace.record_batch(1 * MS, 2 * MS)
    assert pace.patience_ns == 10 * MS
    pace.record_batch(41 * MS, None)
    assert pace.patience_ns == 4 * (6 + 1) * MS
