"""Limits how many requests a batch has when many clients share a model with short executions.

Clients that wait for their responses send their next requests together, when a batch is done. If
one batch has all of these requests, the gateway and the executor work by turns: the executor is
idle while the gateway converts requests, and the other way round. With smaller batches both work at
the same time.

The module is pure: its caller passes all measurements as arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_scheduler.batching.forming_rules import UNLIMITED

if TYPE_CHECKING:
    from nereid_scheduler.batching.dynamic_batcher import DynamicBatcher

# With fewer open requests than this, smaller batches cost more than the overlap saves.
_MIN_OPEN: Final = 32
# Rough cost of a request outside the executor. If the execution takes longer for each request, the
# executor is busy anyway, and its batches should be large.
_OVERHEAD_NS: Final = 20_000


class BatchShares:
    """Limit the number of requests in the batches of one DynamicBatcher."""

    __slots__ = ("_batcher", "execution_ns")

    def __init__(self, batcher: DynamicBatcher) -> None:
        self._batcher = batcher
        # Moving average of a batch's execution time; 0 until a batch was measured.
        self.execution_ns = 0.0

    def update(self, open_requests: int, instances: int) -> None:
        """Compute the maximum number of requests in a batch, and set it on the batcher.

        open_requests: number of requests without a response, whether queued or executing.
        instances: number of ready instances.
        """
        most = UNLIMITED
        if (
            open_requests >= _MIN_OPEN
            and instances
            and 0 < self.execution_ns <= open_requests * _OVERHEAD_NS
        ):
            # Divide the requests into one batch for each instance and one further batch, which is
            # gathered while the others execute.
            most = -(-open_requests // (instances + 1))
        self._batcher.most_requests = most
