"""Maximum sizes of batches, and how long a batch waits for more requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid_scheduler.batching.policies.cheapest_size import cheapest_size
from nereid_scheduler.batching.policies.fair_shares import fair_share

if TYPE_CHECKING:
    from collections.abc import Hashable, Sized

    from nereid_scheduler.batching.times.batch_times import BatchTimes
    from nereid_scheduler.core.instances.router import Router

# Stands for no limit: a batch never has this many requests.
UNLIMITED: Final = 1 << 62


class Sizing(Protocol):
    """Limits that a DynamicBatcher reads when it forms a batch."""

    @property
    def max_size(self) -> int:
        """Maximum number of rows in a batch."""

    @property
    def delay_ns(self) -> int:
        """Time for which a batch waits for more requests while an instance is free."""

    def max_requests(self, key: Hashable) -> int:
        """Return the maximum number of requests in a batch with this key."""


class ConfiguredSizing:
    """Sizes and delay as the model's configuration has them."""

    __slots__ = ("delay_ns", "max_size")

    def __init__(self, max_size: int, delay_ns: int = 0) -> None:
        self.max_size = max(1, max_size)
        self.delay_ns = delay_ns

    def max_requests(self, key: Hashable) -> int:  # noqa: ARG002 - no limit
        """Return UNLIMITED."""
        return UNLIMITED


class MeasuredSizing(ConfiguredSizing):
    """Batches that leave requests behind where that is fairer or cheaper."""

    __slots__ = ("_open", "_router", "_times")

    def __init__(
        self, max_size: int, router: Router[Any], times: BatchTimes, open_requests: Sized
    ) -> None:
        """open_requests: the version's requests without a response, queued or executing."""
        super().__init__(max_size)
        self._router = router
        self._times = times
        self._open = open_requests

    def max_requests(self, key: Hashable) -> int:
        """Return the smaller limit of both policies."""
        times = self._times
        share = fair_share(len(self._open), self._router.count, times.execution_ns)
        costs = None if times.on_gpu else times.of_shape(key)
        return min(share or UNLIMITED, (costs and cheapest_size(costs)) or UNLIMITED)
