"""Queue policies: priority levels, bounds and timeouts."""

import pytest

from nereid.core.errors import Unavailable
from nereid_scheduler.batching.batcher import make_batcher
from nereid_scheduler.batching.dynamic_batcher import DynamicBatcher
from nereid_scheduler.core.requests.entry import Entry
from tests.support.scheduler.batching import US, dynamic, enqueue, entries_of, next_entries
from tests.support.scheduler.samples import entry_of, model_of


class TestPriorities:
    BATCHING = "preferred_batch_size: 2 priority_levels: 3 default_priority_level: 2"

    def test_urgent_entries_go_first(self) -> None:
        batcher = dynamic(self.BATCHING)
        low, high, middle = (entry_of(level=level) for level in (3, 1, 2))
        enqueue(batcher, low, high, middle)
        assert next_entries(batcher) == [high, middle]
        assert next_entries(batcher) == [low]

    def test_each_level_has_its_own_bound(self) -> None:
        batcher = dynamic(
            self.BATCHING + " default_queue_policy { max_queue_size: 1 }"
            " priority_queue_policy { key: 1 value { max_queue_size: 2 } }"
        )
        enqueue(batcher, *(entry_of(level=level) for level in (1, 1, 2, 3)))
        for level in (1, 2):
            with pytest.raises(Unavailable, match="Exceeds maximum queue size"):
                enqueue(batcher, entry_of(level=level))
        assert batcher.pending == 4


class TestQueueTimeouts:
    POLICY = "preferred_batch_size: 8 default_queue_policy { default_timeout_microseconds: 10"

    def timed(self, timeout_us: int) -> Entry:
        entry = entry_of()
        entry.timeout_ns = timeout_us * US
        return entry

    def test_reject(self) -> None:
        batcher = dynamic(self.POLICY + " }")
        first, second = enqueue(batcher, self.timed(10), self.timed(12))
        assert batcher.wake_at_ns(0) == 10 * US
        ((ended, error),) = batcher.expire_entries(10 * US)
        assert ended is first
        assert (error.code, error.message) == (Unavailable.code, "Request timeout expired")
        assert error.accepted
        assert next_entries(batcher, 11 * US) == [second]

    def test_delay_lets_fresh_entries_pass(self) -> None:
        policy = self.POLICY.replace("8", "1") + " timeout_action: DELAY }"
        batcher = dynamic(policy, max_batch_size=1)
        old, fresh = enqueue(batcher, self.timed(10), self.timed(20))
        assert batcher.expire_entries(10 * US) == []
        fresher = enqueue(batcher, self.timed(25))
        assert [next_entries(batcher) for _ in range(3)] == [[fresh], fresher, [old]]


def test_max_pending_bounds_entries_in_batches_too() -> None:
    config = model_of("max_batch_size: 8 dynamic_batching { preferred_batch_size: 8 }")
    batcher = make_batcher(config, max_pending=2)
    assert isinstance(batcher, DynamicBatcher)
    enqueue(batcher, *entries_of(2))
    batcher.form_batches(0, instances=1)
    with pytest.raises(Unavailable, match="Exceeds maximum queue size"):
        enqueue(batcher, entry_of())
