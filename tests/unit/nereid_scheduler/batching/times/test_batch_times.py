"""The table of a version's measured times."""

from nereid_scheduler.batching.times.batch_times import BatchTimes, shape_of
from nereid_scheduler.core.requests.entry import Batch
from tests.support.scheduler.batching import entries_of, execution
from tests.support.scheduler.samples import entry_of

MS = 1_000_000


def _batch(requests: int = 1, shape: str = "s") -> Batch:
    entries = entries_of(requests, shape)
    return Batch(entries, requests, "full")


def test_one_record_fills_all_views() -> None:
    times = BatchTimes(by_rows=True)
    for _ in range(2):
        times.record("i", _batch(2), execution(10 * MS, round_trip_ns=2 * MS), waited=False)
    assert times.execution_ns == times.of_instance("i").execution_ns == 10 * MS
    assert times.of_instance("i").round_trip_ns == 2 * MS
    costs = times.of_shape("s")
    assert costs is not None
    assert costs.taken_ns(2) == 12 * MS
    assert times.rows.mean_ns(2) == 12 * MS
    assert not times.on_gpu


def test_a_batch_that_waited_says_nothing_of_round_trips() -> None:
    times = BatchTimes()
    times.record("i", _batch(), execution(MS, round_trip_ns=5 * MS), waited=True)
    assert times.of_instance("i").round_trip_ns == 0
    assert not times.rows.largest


def test_an_instance_that_is_forgotten_begins_anew() -> None:
    times = BatchTimes()
    times.record("i", _batch(), execution(MS), waited=False)
    times.forget_instance("i")
    assert times.of_instance("i").execution_ns == 0
    assert times.execution_ns == MS


def test_the_number_of_shapes_is_bounded() -> None:
    times = BatchTimes()
    for number in range(65):
        times.record("i", _batch(1, f"s{number}"), execution(MS), waited=False)
    assert times.of_shape("s0") is None
    assert times.of_shape("s1") is not None


def test_batches_of_several_rows_or_lone_requests_have_no_shape() -> None:
    assert shape_of(_batch(2)) == "s"
    assert shape_of(Batch([entry_of(2)], 2, "full")) is None
    alone = entry_of()
    alone.key = alone
    assert shape_of(Batch([alone], 1, "single")) is None


def test_gpus_are_noticed() -> None:
    times = BatchTimes()
    times.record("i", _batch(), execution(MS, gpu_uuid="GPU-1"), waited=False)
    assert times.on_gpu
