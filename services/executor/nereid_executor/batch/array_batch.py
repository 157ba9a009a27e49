"""One batch of arrays that an instance executes."""

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
    """A batch of arrays. Times are readings of perf_counter_ns()."""

    gathered: GatheredBatch | None = None
    # When the model got the inputs; 0 if the batch failed before.
    stacked_ns = 0
    # `None` while the model executes the batch, and if the batch failed.
    outputs: Sequence[Array] | None = None
    # The kept arrays with which the batch was executed, if any.
    lone_run: LoneRun | None = None
    error: Exception | None = None

    def __init__(self, message: BatchMessage, ids: Sequence[int], started_ns: int) -> None:
        self.id = self.number = message.id
        self.message = message
        self.ids = ids
        self.started_ns = started_ns
