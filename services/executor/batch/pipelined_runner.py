"""Executes batches on a model that has several at a time: begin() a batch, finish() the oldest.

Knows no stream and no thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from nereid.backends import TensorParts
from nereid.core.errors import INTERNAL_MESSAGE, NereidError
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.batch.arrays import gather_members, input_parts, stack_inputs
from nereid.services.executor.batch.batch_runner import BatchRunner
from nereid.services.executor.tracing import Run, sampled

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from nereid.backends import InstanceSpec, PipelinedModel
    from nereid.core.tensors import Array
    from nereid.services.executor.batch.arrays import GatheredBatch, Piece
    from nereid.services.executor.recent_runs import RecentRuns


@dataclass(slots=True)
class _BegunBatch:
    """A batch that the model has, or that failed before."""

    message: pb.Batch
    ids: Sequence[int]
    # Who runs it, for RecentRuns.
    owner: Hashable
    started_ns: int
    submitted_ns: int = 0
    gathered: GatheredBatch | None = None
    # The model has it.
    submitted: bool = False
    error: Exception | None = None


class PipelinedRunner(BatchRunner):
    """A BatchRunner for a PipelinedModel without sequences' states.

    execute() runs one batch at a time, as while warming up.
    """

    def __init__(
        self, spec: InstanceSpec, model: PipelinedModel, *options: Any, recent_runs: RecentRuns
    ) -> None:
        """options, recent_runs: as BatchRunner's."""
        super().__init__(spec, model, *options, recent_runs=recent_runs)
        self.pipelined = model
        self._begun: deque[_BegunBatch] = deque()
        # RecentRuns knows one batch of each owner.
        self._owners: deque[Hashable] = deque(object() for _ in range(model.pipeline_depth))

    @property
    def in_flight(self) -> int:
        """Batches that were begun and not finished."""
        return len(self._begun)

    @property
    def can_begin(self) -> bool:
        """Whether the model takes another batch."""
        return bool(self._owners)

    def begin(self, frame: bytes) -> None:
        """Begin a serialised Batch, unless it was withdrawn. What fails is reported by finish()."""
        started = perf_counter_ns()
        batch = pb.Batch.FromString(frame)
        if not self.batches.begin(batch.id):
            return
        ids = [member.id for member in batch.members]
        begun = _BegunBatch(batch, ids, self._owners.popleft(), started)
        self._begun.append(begun)
        self._recent_runs.begin(begun.owner, ids)
        try:
            begun.gathered = gathered = gather_members(self._planner, batch.members, self._view)
            if gathered.first is not None:
                self.pipelined.submit_batch(self._parts(gathered), gathered.names)
                begun.submitted = True
        except Exception as error:
            begun.error = error
        begun.submitted_ns = perf_counter_ns()

    def is_complete(self) -> bool:
        """Whether finish() would not have to wait."""
        return not self._begun[0].submitted or self.pipelined.is_batch_complete()

    def finish(self) -> bytes:
        """The oldest batch's serialised Executed, with one response per member."""
        begun = self._begun.popleft()
        batch, lender = begun.message, self._lender
        ran = begun.submitted_ns
        failed: str | None = None
        pieces: list[Piece]
        try:
            outputs: Sequence[Array] = self.pipelined.collect_batch() if begun.submitted else ()
            ran = perf_counter_ns()
            if begun.error is not None:
                raise begun.error
            assert begun.gathered is not None, "it was gathered, or there is an error"
            lend = None if lender is None else lender.lend
            pieces = self._split_outputs(self.signature, begun.gathered, outputs, lend)
            self._check_size(pieces)
        except Exception as error:
            if lender is not None:
                lender.free_lent()
            pieces = self._failures(error, begun.gathered, batch.members)
            failed = error.message if isinstance(error, NereidError) else INTERNAL_MESSAGE
        if lender is not None and lender.lent:
            lender.lent.clear()
        ended = perf_counter_ns()
        if batch.traced and self._tracer is not None:
            contexts = sampled(batch.members)
            times = (begun.started_ns, begun.submitted_ns, ran, ended)
            self.traced = Run(contexts, *times, failed)
        executed = pb.Executed(
            id=batch.id,
            compute_input_ns=begun.submitted_ns - begun.started_ns,
            compute_infer_ns=ran - begun.submitted_ns,
            compute_output_ns=ended - ran,
        )
        pieces.append(executed.SerializeToString())
        frame = b"".join(pieces)
        self._recent_runs.complete(begun.owner, begun.ids, frame)
        self._owners.append(begun.owner)
        return frame

    def abandon(self) -> None:
        """Finish what is in flight, though its responses can no longer be delivered: RecentRuns
        keeps them for who sends the requests again.
        """
        while self._begun:
            self.finish()

    def _parts(self, gathered: GatheredBatch) -> Mapping[str, TensorParts]:
        if self._stack_inputs is stack_inputs:
            return input_parts(self.signature, gathered)
        # Filled up to one shape, or with inputs that the batch makes.
        arrays = self._stack_inputs(self.signature, gathered)
        return {
            name: TensorParts([array.reshape(-1).view("u1").data], array.shape, array.dtype)
            for name, array in arrays.items()
        }
