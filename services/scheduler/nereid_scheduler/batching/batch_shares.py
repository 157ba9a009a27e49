"""Limits the requests in a batch when many clients share a model with short executions.

Clients that wait for responses send their next requests together, after a batch. If one batch has
all of them, executor and gateway work by turns. With smaller batches both work at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_scheduler.batching.forming_rules import UNLIMITED

if TYPE_CHECKING:
    from nereid_scheduler.batching.dynamic_batcher import DynamicBatcher

# Below this number of open requests, smaller batches cost more than the overlap saves.
_MIN_OPEN: Final = 32
# Rough cost of a request outside the executor. If executions take longer, large batches are best.
_OVERHEAD_NS: Final = 20_000


class BatchShares:
    """Limit the number of requests in the batches of one DynamicBatcher."""

    __slots__ = ("_batcher", "execution_ns")

    def __init__(self, batcher: DynamicBatcher) -> None:
        self._batcher = batcher
        # Moving average of execution times; 0 until a batch was measured.
        self.execution_ns = 0.0

    def update(self, open_requests: int, instances: int) -> None:
        """Set the batcher's limit. open_requests: number of requests without a response."""
        most = UNLIMITED
        if (
            open_requests >= _MIN_OPEN
            and instances
            and 0 < self.execution_ns <= open_requests * _OVERHEAD_NS
        ):
            # One batch per instance, and one that is gathered while the others execute.
            most = -(-open_requests // (instances + 1))
        self._batcher.most_requests = most
