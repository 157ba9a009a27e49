"""One batch of arrays that an instance executes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_executor.batch.lifecycle.received_batches import ReceivedBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.tensors.tensors import Array
    from nereid_executor.batch.arrays import GatheredBatch
    from nereid_executor.batch.batch_reader import BatchMessage


class ArrayBatch(ReceivedBatch):
    """A batch of arrays."""

    gathered: GatheredBatch | None = None
    # `None` while the model executes the batch, and if the batch failed.
    outputs: Sequence[Array] | None = None
    error: Exception | None = None

    def __init__(self, message: BatchMessage, started_ns: int) -> None:
        self.id = self.number = message.id
        self.message = message
        self.ids = [request.id for request in message.requests]
        self.started_ns, self.frame_bytes = started_ns, message.frame_bytes
