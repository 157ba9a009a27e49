"""Shares of the open requests: how many requests a batch has."""

import pytest

from nereid_scheduler.batching.policies.fair_shares import can_share, fair_share
from tests.support.scheduler.samples import model_of

US = 1000


@pytest.mark.parametrize(
    ("execution_ns", "open_requests", "instances", "share"),
    [
        (200 * US, 64, 1, 32),
        (200 * US, 65, 1, 33),
        (200 * US, 64, 3, 16),
        (200 * US, 32, 1, 16),
        (200 * US, 31, 2, 0),
        (64 * 20 * US, 64, 1, 32),
        (64 * 20 * US + 1, 64, 1, 0),
        (50_000 * US, 16, 2, 8),
        (50_000 * US, 17, 2, 9),
        (50_000 * US, 1, 4, 1),
        (0, 64, 2, 0),
        (200 * US, 64, 0, 0),
        (50_000 * US, 16, 0, 0),
    ],
    ids=[
        "one share more",
        "rounded up",
        "one more than instances",
        "just enough",
        "too few",
        "just short enough",
        "long executions of one instance",
        "long executions of two",
        "long executions, rounded up",
        "more instances than requests",
        "not measured",
        "no instance",
        "no instance, long executions",
    ],
)
def test_how_many_requests_are_a_share(
    execution_ns: int, open_requests: int, instances: int, share: int
) -> None:
    assert fair_share(open_requests, instances, execution_ns) == share


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
