"""One batch of arrays that an instance executes."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_executor.batch.lifecycle.received_batch import ReceivedBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.tensors.tensors import Array
    from nereid_executor.batch.arrays import GatheredBatch
    from nereid_executor.batch.batch_reader import BatchMessage


class ArrayBatch(ReceivedBatch):
    """A batch of arrays."""

    def __init__(self, message: BatchMessage, ids: Sequence[int], started_ns: int) -> None:
        super().__init__(message.id, message.id, ids, started_ns, message.frame_bytes)
        self.message = message
        self.gathered: GatheredBatch | None = None
        # `None` while the model executes the batch, and if the batch failed.
        self.outputs: Sequence[Array] | None = None
        self.error: Exception | None = None
