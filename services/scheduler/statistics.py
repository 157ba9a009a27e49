"""What a model version has done, in the form of Triton's statistics extension.

Pure: durations and the wall clock are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.pb import kserve_pb2
    from services.scheduler.batcher import Batch
    from services.scheduler.entry import Entry


@dataclass(frozen=True, slots=True)
class Execution:
    """How one batch went. Times are monotonic, epoch_ms is the wall clock at its end."""

    started_ns: int  # an instance was given the batch
    finished_ns: int  # its answers were there
    epoch_ms: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int


class ModelStatistics:
    """The counters of one model version."""

    def record_batch(
        self, batch: Batch, execution: Execution, failed: Sequence[Entry] = ()
    ) -> None:
        """A batch ran; failed: members that got an error from it instead of an answer."""
        raise NotImplementedError

    def record_failure(self, entry: Entry, now_ns: int) -> None:
        """A request failed that no execution answered: refused, expired, cancelled, lost."""
        raise NotImplementedError

    def record_cache_hit(self, entry: Entry, lookup_ns: int, now_ns: int) -> None:
        raise NotImplementedError

    def record_cache_miss(self, cost_ns: int) -> None:
        """Beside record_batch; cost_ns is lookup and insertion together."""
        raise NotImplementedError

    def to_proto(self, name: str, version: str) -> kserve_pb2.ModelStatistics:
        raise NotImplementedError
