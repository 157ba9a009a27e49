"""The default scheduler: one request at a time, in order."""

from __future__ import annotations

import pytest

from nereid.core.errors import DeadlineExceeded, Unavailable
from nereid.services.scheduler.batching.batcher import FifoBatcher, make_batcher
from nereid.services.scheduler.requests.entry import State
from tests.support.scheduler.batching import add, some, taken
from tests.support.scheduler.samples import entry_of, model_of


class TestDefaultScheduler:
    def test_runs_one_request_at_a_time_in_order(self) -> None:
        batcher = make_batcher(model_of("max_batch_size: 8"))
        first, second = add(batcher, entry_of(3), entry_of())
        assert isinstance(batcher, FifoBatcher)
        batcher.poll(0, 1)
        batch = batcher.take(0, instances=1)
        assert batch is not None
        assert (batch.entries, batch.size, batch.reason) == ([first], 3, "single")
        assert first.state is State.EXECUTING
        assert batcher.pending == 1
        assert taken(batcher) == [second]
        assert batcher.take(0, instances=1) is None

    def test_what_lost_its_instance_comes_first_again(self) -> None:
        batcher = FifoBatcher("m")
        first, second = add(batcher, *some(2))
        assert taken(batcher) == [first]
        batcher.put_back([first])
        assert first.state is State.QUEUED
        assert batcher.pending == 2
        assert [taken(batcher), taken(batcher)] == [[first], [second]]

    def test_forgets_what_was_given_up(self) -> None:
        batcher = FifoBatcher("m")
        first, second = add(batcher, *some(2))
        assert batcher.remove(first)
        assert not batcher.remove(first)
        assert taken(batcher) == [second]

    def test_has_no_bound_but_the_mesh_has(self) -> None:
        batcher = make_batcher(model_of(), max_pending=2)
        add(batcher, *some(2))
        refused = entry_of()
        refused.request.request_id = "r7"
        with pytest.raises(Unavailable) as error:
            batcher.add(refused, 0)
        assert error.value.message == "[request id: r7] Exceeds maximum queue size"
        assert not error.value.accepted
        taken(batcher)
        add(batcher, refused)

    def test_ends_requests_at_their_deadline(self) -> None:
        batcher = FifoBatcher("m")
        early, late = some(2)
        early.deadline_ns, late.deadline_ns = 50, 70
        add(batcher, late, early)
        assert batcher.wake_at_ns(0) == 50
        assert batcher.expire(49) == []
        ((ended, error),) = batcher.expire(50)
        assert ended is early
        assert isinstance(error, DeadlineExceeded)
        assert error.accepted
        assert batcher.wake_at_ns(50) == 70
        assert taken(batcher) == [late]
