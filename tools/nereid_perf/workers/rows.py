"""The rows of numbers that a worker reports, one for each request."""

# layout: compiled

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

import numpy as np

from nereid_perf.workers.timing_rows import TimingWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nereid_perf.wire.client import PendingRequest

# Outcomes. A failure has the number FAILED plus the index of its error text.
OK: Final = 0
CANCELLED: Final = 1
FAILED: Final = 2
# Maximum number of error texts; further texts count as one.
_MAX_TEXTS: Final = 100
_OTHER: Final = "other errors"

# Times are in ns of the monotonic clock; 0 means that the request did not get that far.
ROW: Final = np.dtype(
    [
        ("intended", np.int64),
        ("sent", np.int64),
        ("first", np.int64),
        ("last", np.int64),
        ("workload", np.int64),
        ("responses", np.int64),
        ("outcome", np.int64),
        ("input_tokens", np.int64),
        ("output_tokens", np.int64),
    ]
)
# `gap`: time between two responses. `last`: when the second one arrived.
GAP: Final = np.dtype([("last", np.int64), ("workload", np.int64), ("gap", np.int64)])


class RowWriter:
    """Gathers rows until take() returns them."""

    def __init__(self) -> None:
        self.rows = array("q")
        self.gaps = array("q")
        self.timings = TimingWriter()
        self._outcomes: dict[str, int] = {}
        self._new_texts: list[str] = []

    def add(self, pending: PendingRequest, outcome: int) -> None:
        """Add the row of a request that has ended, and the gaps between its responses."""
        workload = pending.request.workload
        self.rows.extend(
            (
                # In a closed loop, the time of sending is the intended time.
                pending.intended_ns or pending.sent_ns,
                pending.sent_ns,
                pending.first_ns,
                pending.last_ns,
                workload,
                pending.responses,
                outcome,
                pending.input_tokens,
                pending.output_tokens,
            )
        )
        if pending.server_timing and outcome == OK:
            self.timings.add(pending)
        if pending.between is not None:
            end = pending.last_ns
            for gap in reversed(pending.between):
                self.gaps.extend((end, workload, gap))
                end -= gap

    def outcome_of(self, error: str) -> int:
        """Return the outcome for a failure's text."""
        outcome = self._outcomes.get(error)
        if outcome is None:
            if len(self._outcomes) >= _MAX_TEXTS and error != _OTHER:
                return self.outcome_of(_OTHER)
            outcome = self._outcomes[error] = FAILED + len(self._outcomes)
            self._new_texts.append(error)
        return outcome

    def take(self) -> tuple[bytes, bytes, list[str]]:
        """Return the rows, gaps, and new error texts since the last call."""
        taken = self.rows.tobytes(), self.gaps.tobytes(), self._new_texts
        del self.rows[:]
        del self.gaps[:]
        self._new_texts = []
        return taken


def rows_of(content: bytes) -> NDArray[np.void]:
    """Return the rows in a report's bytes."""
    return np.frombuffer(content, dtype=ROW)


def gaps_of(content: bytes) -> NDArray[np.void]:
    """Return the gaps in a report's bytes."""
    return np.frombuffer(content, dtype=GAP)
