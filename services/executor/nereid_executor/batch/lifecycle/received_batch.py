"""One batch that an instance has begun; received_batches describes its states."""

# layout: compiled

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


class BatchState(Enum):
    """State of a begun batch, by the table in received_batches."""

    EXECUTING = 1
    DEFERRED = 2
    COMPLETE = 3
    LOST = 4


# Module-level names are faster to look up than members of an enumeration.
EXECUTING: Final = BatchState.EXECUTING
DEFERRED: Final = BatchState.DEFERRED
COMPLETE: Final = BatchState.COMPLETE
LOST: Final = BatchState.LOST


class ReceivedBatch:
    """A batch that its instance has begun. Times are readings of perf_counter_ns()."""

    def __init__(
        self, batch_id: int, number: int, ids: Sequence[int], started_ns: int, frame_bytes: int = 0
    ) -> None:
        # The scheduler's number; 0 for a replay or a warm-up, which no scheduler has sent.
        self.id = batch_id
        # Number by which the model knows the batch.
        self.number = number
        # Ids of the requests, which are the same in a resend.
        self.ids = ids
        # When the batch came, when the model got its inputs (0 if it did not get them), when the
        # model responded, and when the frame with the responses was made.
        self.started_ns = started_ns
        self.begun_ns = self.responded_ns = self.ended_ns = 0
        self.state: BatchState = EXECUTING
        # Size of the scheduler's frame.
        self.frame_bytes = frame_bytes
        # Trace contexts of the sampled requests.
        self.trace_contexts: Sequence[bytes] = ()
        # Why the batch failed as a whole; `None` if it did not.
        self.failure: str | None = None
