"""Maximum sizes of batches, and how long a batch waits for more requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid_scheduler.batching.policies.cheapest_size import cheapest_size
from nereid_scheduler.batching.policies.fair_shares import fair_share

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence, Sized

    from nereid_scheduler.batching.times.batch_times import BatchTimes
    from nereid_scheduler.core.instances.router import Router

# Stands for no limit: a batch never has this many requests.
UNLIMITED: Final = 1 << 60


class Sizing:
    """Limits that a DynamicBatcher reads when it forms a batch, as the configuration has them."""

    def __init__(self, max_size: int, delay_ns: int = 0, preferred: Sequence[int] = ()) -> None:
        # Maximum number of rows, and the numbers that a batch need not exceed.
        self.max_size = max(1, max_size)
        self.preferred = frozenset(preferred)
        self.max_preferred = max(preferred, default=0)
        # Time for which a batch waits for more requests while an instance is free.
        self.delay_ns = delay_ns

    def request_limit(self, key: Hashable) -> tuple[int, str]:  # noqa: ARG002 - no limit
        """Return the maximum number of requests in a batch, and the reason of one that has them."""
        return UNLIMITED, ""

    def max_requests(self, key: Hashable) -> int:
        """Return the maximum number of requests in a batch with this key."""
        return self.request_limit(key)[0]


class MeasuredSizing(Sizing):
    """Batches that leave requests behind where that is fairer or cheaper."""

    def __init__(
        self, max_size: int, router: Router[Any], times: BatchTimes, open_requests: Sized
    ) -> None:
        """open_requests: the version's requests without a response, queued or executing."""
        super().__init__(max_size, preferred=(max_size,))
        self._router = router
        self._times = times
        self._open = open_requests

    def request_limit(self, key: Hashable) -> tuple[int, str]:
        """Return the smaller limit of both policies, and which of them it is."""
        times, open_requests = self._times, len(self._open)
        if open_requests < 2:
            return UNLIMITED, ""
        limit = fair_share(open_requests, self._router.count, times.execution_ns) or UNLIMITED
        costs = None if times.on_gpu else times.of_shape(key)
        if costs is not None:
            cheapest = cheapest_size(costs)
            if 0 < cheapest < limit:
                return cheapest, "cost"
        return limit, "shared"
