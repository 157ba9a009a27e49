"""A batch of arrays, as it is executed."""

# layout: not compiled, extends ReceivedBatch, which is generic

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
    """A batch that the model has, or that failed before. Times are those of perf_counter_ns()."""

    gathered: GatheredBatch | None = None
    # When the model had its inputs; 0: something failed before.
    stacked_ns = 0
    # None: the model still executes it, or it failed.
    outputs: Sequence[Array] | None = None
    # Executed with its arrays.
    lone_run: LoneRun | None = None
    error: Exception | None = None

    def __init__(self, message: BatchMessage, ids: Sequence[int], started_ns: int) -> None:
        """ids: the requests', for RecentRuns."""
        self.id = self.number = message.id
        self.message = message
        self.ids = ids
        self.started_ns = started_ns
