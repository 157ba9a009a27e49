"""The default scheduler: one request at a time, in order."""

import pytest

from nereid.core.errors import DeadlineExceeded, Unavailable
from nereid_scheduler.batching.batcher import FifoBatcher, make_batcher
from nereid_scheduler.core.requests.entry import RequestState
from tests.support.scheduler.batching import enqueue, entries_of, next_entries
from tests.support.scheduler.samples import entry_of, model_of


class TestDefaultScheduler:
    def test_runs_one_request_at_a_time_in_order(self) -> None:
        batcher = make_batcher(model_of("max_batch_size: 8"))
        first, second = enqueue(batcher, entry_of(3), entry_of())
        assert isinstance(batcher, FifoBatcher)
        batcher.form_batches(0, 1)
        batch = batcher.next_batch(0, instances=1)
        assert batch is not None
        assert (batch.entries, batch.size, batch.reason) == ([first], 3, "single")
        assert first.state is RequestState.EXECUTING
        assert batcher.pending == 1
        assert next_entries(batcher) == [second]
        assert batcher.next_batch(0, instances=1) is None

    def test_requeued_entries_come_first(self) -> None:
        batcher = FifoBatcher("m")
        first, second = enqueue(batcher, *entries_of(2))
        assert next_entries(batcher) == [first]
        batcher.requeue([first])
        assert first.state is RequestState.QUEUED
        assert batcher.pending == 2
        assert [next_entries(batcher), next_entries(batcher)] == [[first], [second]]

    def test_removed_entries_do_not_run(self) -> None:
        batcher = FifoBatcher("m")
        first, second = enqueue(batcher, *entries_of(2))
        assert batcher.remove_entry(first)
        assert not batcher.remove_entry(first)
        assert next_entries(batcher) == [second]

    def test_has_no_bound_but_the_mesh_has(self) -> None:
        batcher = make_batcher(model_of(), max_pending=2)
        enqueue(batcher, *entries_of(2))
        refused = entry_of()
        refused.request.request_id = "r7"
        with pytest.raises(Unavailable) as error:
            batcher.enqueue(refused, 0)
        assert error.value.message == "[request id: r7] Exceeds maximum queue size"
        assert not error.value.accepted
        next_entries(batcher)
        enqueue(batcher, refused)

    def test_ends_requests_at_their_deadline(self) -> None:
        batcher = FifoBatcher("m")
        early, later = entries_of(2)
        early.deadline_ns, later.deadline_ns = 50, 70
        enqueue(batcher, later, early)
        assert batcher.wake_at_ns(0) == 50
        assert batcher.expire_entries(49) == []
        ((ended, error),) = batcher.expire_entries(50)
        assert ended is early
        assert isinstance(error, DeadlineExceeded)
        assert error.accepted
        assert batcher.wake_at_ns(50) == 70
        assert next_entries(batcher) == [later]
