"""One batch of arrays, while an instance executes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_executor.batch.lifecycle.received_batches import ReceivedBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.tensors.tensors import Array
    from nereid_executor.batch.arrays import GatheredBatch
    from nereid_executor.batch.batch_reader import BatchMessage
    from nereid_executor.batch.lone_runs import LoneRun


class ArrayBatch(ReceivedBatch):
    """A batch that the model has been given, or that failed before that.

    Times are those of perf_counter_ns().
    """

    gathered: GatheredBatch | None = None
    # Time when the model had its inputs; 0 if something failed before that.
    stacked_ns = 0
    # `None` while the model executes the batch, and if the batch failed.
    outputs: Sequence[Array] | None = None
    # The kept arrays that the batch was executed with, if any.
    lone_run: LoneRun | None = None
    error: Exception | None = None

    def __init__(self, message: BatchMessage, ids: Sequence[int], started_ns: int) -> None:
        """ids: the ids of the requests, for RecentRuns."""
        self.id = self.number = message.id
        self.message = message
        self.ids = ids
        self.started_ns = started_ns
