"""A request that comes alone runs at once, in the batch that the queue would have made of it."""

import pytest

from nereid_scheduler.batching.batcher import Batcher, make_batcher
from nereid_scheduler.batching.rate_limiting.rate_limited_batcher import (
    RateLimitedBatcher,
    RateLimitedRouter,
)
from nereid_scheduler.batching.rate_limiting.rate_limiter import RateLimiter
from nereid_scheduler.core.requests.entry import RequestState
from nereid_scheduler.core.resources import Resources
from tests.support.scheduler.samples import entry_of, model_of

_TENSORS = (
    "input { name: 'I' data_type: TYPE_UINT8 dims: 1 }"
    " output { name: 'O' data_type: TYPE_UINT8 dims: 1 }"
)
_CONFIGS = {
    "single": "max_batch_size: 8",
    "immediate": "max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 }",
    "several": "max_batch_size: 8 dynamic_batching { preferred_batch_size: [2, 6] }",
    "largest": "max_batch_size: 8 dynamic_batching {}",
    "priorities": (
        "max_batch_size: 8 dynamic_batching { priority_levels: 2 default_priority_level: 1 }"
    ),
    "timeout": (
        "max_batch_size: 8 dynamic_batching"
        " { default_queue_policy { default_timeout_microseconds: 100 max_queue_size: 1 } }"
    ),
}


def _batcher(config: str) -> Batcher:
    return make_batcher(model_of(f"{config} {_TENSORS}"))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("config", _CONFIGS.values(), ids=_CONFIGS)
def test_is_the_batch_that_the_queue_makes(config: str, size: int) -> None:
    queue, queued, lone = _batcher(config), entry_of(size), entry_of(size)
    queue.enqueue(queued, 7)
    expected = queue.next_batch(7, 1)
    batch = _batcher(config).lone_batch(lone, 7)
    assert batch is not None
    assert expected is not None
    assert (batch.entries, expected.entries) == ([lone], [queued])
    assert (batch.size, batch.reason) == (expected.size, expected.reason)
    assert lone.state is queued.state is RequestState.EXECUTING
    assert lone.enqueued_ns == queued.enqueued_ns == 7
    assert lone.holder is queued.holder is None


@pytest.mark.parametrize(
    "config",
    [
        "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 10 }",
        "max_batch_size: 8 sequence_batching { direct {} }",
    ],
    ids=["delay", "sequences"],
)
def test_others_are_queued(config: str) -> None:
    entry = entry_of()
    assert _batcher(config).lone_batch(entry, 7) is None
    assert entry.state is RequestState.RECEIVED


def test_resources_are_granted_first() -> None:
    router: RateLimitedRouter[str] = RateLimitedRouter(RateLimiter(Resources(), lambda _: None))
    batcher = RateLimitedBatcher(_batcher(_CONFIGS["single"]), router, lambda: None)
    assert batcher.lone_batch(entry_of(), 7) is None
