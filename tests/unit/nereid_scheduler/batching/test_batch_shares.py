"""Shares of a batch: how many requests, and where the batcher cuts."""

import pytest

from nereid_scheduler.batching.batch_shares import BatchShares
from nereid_scheduler.batching.batcher import DynamicBatcher
from nereid_scheduler.batching.forming_rules import UNLIMITED, can_share
from nereid_scheduler.core.requests.entry import RequestState
from tests.support.scheduler.batching import dynamic, enqueue, entries_of, next_entries, reason
from tests.support.scheduler.samples import entry_of, model_of

US, MS = 1000, 1_000_000


def _batcher() -> DynamicBatcher:
    batcher = dynamic("preferred_batch_size: 64", max_batch_size=64)
    assert isinstance(batcher, DynamicBatcher)
    return batcher


@pytest.mark.parametrize(
    ("execution_ns", "open_requests", "instances", "most"),
    [
        (200 * US, 64, 1, 32),
        (200 * US, 65, 1, 33),
        (200 * US, 64, 3, 16),
        (200 * US, 32, 1, 16),
        (200 * US, 31, 1, UNLIMITED),
        (64 * 20 * US, 64, 1, 32),
        (64 * 20 * US + 1, 64, 1, UNLIMITED),
        (0, 64, 1, UNLIMITED),
        (200 * US, 64, 0, UNLIMITED),
    ],
    ids=[
        "two shares",
        "rounded up",
        "one more than instances",
        "just enough",
        "too few",
        "just short enough",
        "long executions",
        "not measured",
        "no instance",
    ],
)
def test_how_many_requests_are_a_share(
    execution_ns: int, open_requests: int, instances: int, most: int
) -> None:
    batcher = _batcher()
    shares = BatchShares(batcher)
    shares.execution_ns = execution_ns
    shares.update(open_requests, instances)
    assert batcher.most_requests == most


def test_fewer_open_requests_end_it() -> None:
    batcher = _batcher()
    shares = BatchShares(batcher)
    shares.execution_ns = 200 * US
    shares.update(64, 1)
    shares.update(8, 1)
    assert batcher.most_requests == UNLIMITED


@pytest.mark.parametrize(
    ("batching", "shared"),
    [
        ("", True),
        ("preferred_batch_size: 8", True),
        ("preferred_batch_size: [4, 8]", False),
        ("preferred_batch_size: 4", False),
        ("max_queue_delay_microseconds: 1", False),
    ],
)
def test_configured_sizes_and_delays_are_kept(batching: str, *, shared: bool) -> None:
    config = model_of(f"max_batch_size: 8 dynamic_batching {{ {batching} }}")
    assert config.batching is not None
    assert can_share(config.batching, 8) is shared


class TestCuts:
    def test_a_batch_ends_at_its_share(self) -> None:
        batcher = _batcher()
        batcher.most_requests = 3
        entries = enqueue(batcher, *entries_of(7))
        first = batcher.next_batch(0, 1)
        assert first is not None
        assert (first.entries, reason(first)) == (entries[:3], "shared")
        assert next_entries(batcher) == entries[3:6]
        last = batcher.next_batch(0, 1)
        assert last is not None
        assert (last.entries, reason(last)) == (entries[6:], "immediate")

    def test_requests_count_not_rows(self) -> None:
        batcher = _batcher()
        batcher.most_requests = 2
        entries = enqueue(batcher, entry_of(10), entry_of(10), entry_of(10))
        batch = batcher.next_batch(0, 1)
        assert batch is not None
        assert (batch.entries, batch.size) == (entries[:2], 20)

    def test_a_batch_that_grows_ends_at_its_share(self) -> None:
        batcher = _batcher()
        batcher.most_requests = 3
        entries = []
        for _ in range(5):
            entries += enqueue(batcher, entry_of())
            batcher.form_batches(0, 1)
        assert {entry.state for entry in entries} == {RequestState.BATCHED}
        assert next_entries(batcher) == entries[:3]
        assert next_entries(batcher) == entries[3:]

    def test_a_share_may_wait_at_an_instance(self) -> None:
        batcher = _batcher()
        entries = enqueue(batcher, *entries_of(4))
        assert batcher.next_waiting_batch(0, 1) is None
        batcher.most_requests = 4
        batch = batcher.next_waiting_batch(0, 1)
        assert batch is not None
        assert batch.entries == entries
