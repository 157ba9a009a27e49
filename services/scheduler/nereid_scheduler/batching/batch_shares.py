"""Bound on the requests in one batch when many clients share a model with short executions.

Clients that wait for their responses send their next requests together, when a batch is done. With
all of them in one batch, the gateway's process and the executor take turns: one converts the
requests while the other is idle. With smaller batches both work at the same time.

Pure: numbers in, a bound for the batcher out. Measures nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_scheduler.batching.forming_rules import UNLIMITED

if TYPE_CHECKING:
    from nereid_scheduler.batching.dynamic_batcher import DynamicBatcher

# With fewer open requests, smaller batches cost more than the overlap saves.
_MIN_OPEN: Final = 32
# Rough cost of a request outside of the executor. If executing one takes longer, the executor is
# busy anyway, and its batches should be large.
_OVERHEAD_NS: Final = 20_000


class BatchShares:
    """Bound the requests in a batch of one DynamicBatcher."""

    __slots__ = ("_batcher", "execution_ns")

    def __init__(self, batcher: DynamicBatcher) -> None:
        self._batcher = batcher
        # Moving average of a batch's execution time; 0 means not measured.
        self.execution_ns = 0.0

    def update(self, open_requests: int, instances: int) -> None:
        """Set the batcher's bound.

        open_requests: requests without a response, wherever they are.
        """
        most = UNLIMITED
        if (
            open_requests >= _MIN_OPEN
            and instances
            and 0 < self.execution_ns <= open_requests * _OVERHEAD_NS
        ):
            # One share for each instance, and one that is gathered meanwhile.
            most = -(-open_requests // (instances + 1))
        self._batcher.most_requests = most
