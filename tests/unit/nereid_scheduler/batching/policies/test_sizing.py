"""How large batches may be, and where the batcher cuts them."""

from nereid_scheduler.batching.batcher import DynamicBatcher
from nereid_scheduler.batching.policies.sizing import UNLIMITED, MeasuredSizing
from nereid_scheduler.batching.times.batch_times import BatchTimes
from nereid_scheduler.core.instances.router import Router
from nereid_scheduler.core.requests.entry import Batch, RequestState
from tests.support.scheduler.batching import (
    enqueue,
    entries_of,
    execution,
    next_entries,
    reason,
)
from tests.support.scheduler.samples import entry_of, model_of

MS = 1_000_000


def _batcher(sizing: MeasuredSizing) -> DynamicBatcher:
    config = model_of("max_batch_size: 64 dynamic_batching { preferred_batch_size: 64 }")
    assert config.batching is not None
    return DynamicBatcher("m", config.batching, sizing)


def _limited(limit: int) -> MeasuredSizing:
    """Two instances with long executions share twice the limit."""
    sizing, times = _measured(2 * limit, 2)
    _record(times, 1, 300)
    return sizing


def _measured(open_requests: int | list[int], instances: int) -> tuple[MeasuredSizing, BatchTimes]:
    router: Router[int] = Router()
    for number in range(instances):
        router.add_instance(number)
    times = BatchTimes()
    opened = range(open_requests) if isinstance(open_requests, int) else open_requests
    return MeasuredSizing(64, router, times, opened), times


def _record(
    times: BatchTimes, requests: int, milliseconds: float, gpu_uuid: str = "", shape: str = "s"
) -> None:
    batch = Batch(entries_of(requests, shape), requests, "full")
    taken = execution(int(milliseconds * MS), gpu_uuid=gpu_uuid)
    times.record("i", batch, taken, waited=False)


def test_nothing_is_limited_before_anything_was_measured() -> None:
    sizing, _ = _measured(64, 2)
    assert sizing.max_requests("s") == UNLIMITED


def test_each_instance_gets_its_share() -> None:
    sizing, times = _measured(64, 2)
    _record(times, 32, 300)
    assert sizing.request_limit("s") == (32, "shared")


def test_the_cheapest_size_counts_where_it_is_smaller() -> None:
    sizing, times = _measured(64, 1)
    for _ in range(8):
        for requests, cost in ((16, 15.4), (8, 14.3), (4, 13.9), (2, 14.2), (1, 15.1)):
            _record(times, requests, requests * cost)
    assert sizing.request_limit("s") == (4, "cost")
    assert sizing.max_requests("other") == UNLIMITED


def test_on_gpus_size_is_not_limited_by_cost() -> None:
    sizing, times = _measured(64, 1)
    for _ in range(8):
        for requests, cost in ((16, 15.4), (8, 14.3), (4, 13.9), (2, 14.2), (1, 15.1)):
            _record(times, requests, requests * cost, gpu_uuid="GPU-1")
    assert sizing.max_requests("s") == UNLIMITED


class TestCuts:
    def test_a_batch_ends_at_its_limit(self) -> None:
        batcher = _batcher(_limited(3))
        entries = enqueue(batcher, *entries_of(7))
        first = batcher.next_batch(0, 1)
        assert first is not None
        assert (first.entries, reason(first)) == (entries[:3], "shared")
        assert next_entries(batcher) == entries[3:6]
        last = batcher.next_batch(0, 1)
        assert last is not None
        assert (last.entries, reason(last)) == (entries[6:], "immediate")

    def test_requests_count_not_rows(self) -> None:
        batcher = _batcher(_limited(2))
        entries = enqueue(batcher, entry_of(10), entry_of(10), entry_of(10))
        batch = batcher.next_batch(0, 1)
        assert batch is not None
        assert (batch.entries, batch.size) == (entries[:2], 20)

    def test_a_batch_that_grows_ends_at_its_limit(self) -> None:
        batcher = _batcher(_limited(3))
        entries = []
        for _ in range(5):
            entries += enqueue(batcher, entry_of())
            batcher.form_batches(0, 1)
        assert {entry.state for entry in entries} == {RequestState.BATCHED}
        assert next_entries(batcher) == entries[:3]
        assert next_entries(batcher) == entries[3:]

    def test_a_batch_at_its_limit_has_grown(self) -> None:
        opened: list[int] = []
        sizing, times = _measured(opened, 2)
        _record(times, 1, 300)
        batcher = _batcher(sizing)
        entries = enqueue(batcher, *entries_of(4))
        assert not batcher.has_grown(0, 1)
        opened.extend(range(8))
        assert batcher.has_grown(0, 1)
        batch = batcher.next_batch(0, 1)
        assert batch is not None
        assert batch.entries == entries

    def test_the_reason_is_the_policy_that_ends_the_batch(self) -> None:
        sizing, times = _measured(8, 2)
        for _ in range(8):
            for requests, cost in ((1, 15), (2, 14), (4, 16), (8, 16)):
                _record(times, requests, requests * cost)
        batcher = _batcher(sizing)
        enqueue(batcher, *entries_of(3, "s"), *entries_of(5, "other"))
        assert reason(batcher.next_batch(0, 2)) == "cost"
        assert reason(batcher.next_batch(0, 2)) == "shape"
        assert reason(batcher.next_batch(0, 2)) == "shared"

    def test_shapes_are_limited_apart(self) -> None:
        sizing, times = _measured(6, 1)
        for _ in range(8):
            for requests, cost in ((1, 15), (2, 14), (4, 16)):
                _record(times, requests, requests * cost, shape="a")
        batcher = _batcher(sizing)
        entries = enqueue(batcher, *(entry_of(key=key) for key in "aabbba"))
        batcher.form_batches(0, 1)
        assert next_entries(batcher) == entries[:2]
        assert next_entries(batcher) == entries[2:5]
        assert next_entries(batcher) == entries[5:]
