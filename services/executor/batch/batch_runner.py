"""Executes batches on a model: a Batch message in, an Executed message out.

Knows no stream and no thread.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING

from nereid.core.classification import read_labels
from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError
from nereid.core.messages import ErrorStatus
from nereid.observability.logging import request_log_extra
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.batch.arrays import (
    fail_members,
    gather_members,
    split_outputs,
    stack_inputs,
)
from nereid.services.executor.batch.begun_batches import BegunBatches
from nereid.services.executor.batch.mixed_shapes import MixedShapes, mixes_shapes
from nereid.services.executor.batch.request_plan import Planner, signature_of
from nereid.services.executor.batch.responses import MAX_EXECUTED_BYTES, error_response
from nereid.services.executor.batch.sequence_states import SequenceStates
from nereid.services.executor.recent_runs import RecentRuns
from nereid.services.executor.tracing import Run, record, sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nereid.backends import InstanceSpec, Model
    from nereid.core.tensors import Array
    from nereid.observability.tracing import Tracer
    from nereid.services.executor.batch.arrays import GatheredBatch, Lend, Piece, View
    from nereid.services.executor.batch.request_plan import Signature
    from nereid.services.executor.shared_tensors import OutputLender

    StackInputs = Callable[[Signature, GatheredBatch], dict[str, Array]]
    SplitOutputs = Callable[[Signature, GatheredBatch, Sequence[Array], Lend | None], list[Piece]]

_log = logging.getLogger(__name__)


def _planned(
    members: Sequence[pb.BatchMember], gathered: GatheredBatch
) -> Sequence[tuple[int, pb.BatchMember]]:
    """Those without an error, with their places: the rows of the batch."""
    outcomes = gathered.outcomes
    return [
        (place, member)
        for place, member in enumerate(members)
        if not isinstance(outcomes[place], ErrorStatus)
    ]


class BatchRunner:
    """Executes batches on one loaded model; used by its instance's thread alone."""

    def __init__(  # noqa: PLR0913 (what most models need comes by keyword)
        self,
        spec: InstanceSpec,
        model: Model,
        tracer: Tracer | None = None,
        view: View | None = None,
        lender: OutputLender | None = None,
        *,
        recent_runs: RecentRuns | None = None,
    ) -> None:
        """view: maps requests' tensors in shared memory; lender: puts responses' there.

        recent_runs: is notified of the requests that run.
        """
        self._name = spec.name
        self._model = model
        self.signature = signature_of(
            spec.config,
            spec.version,
            model.description,
            bytes_as_text=model.bytes_as_text,
            labels=read_labels(spec.config, spec.version_path.parent),
        )
        if getattr(model, "escapes_bytes", False):
            self.signature = replace(self.signature, escapes_bytes=True)
        self._planner = Planner(self.signature)
        self._stack_inputs: StackInputs = stack_inputs
        self._split_outputs: SplitOutputs = split_outputs
        if mixes_shapes(spec.config):
            mixed = MixedShapes(spec.config, self.signature)
            self._stack_inputs, self._split_outputs = mixed.stack_inputs, mixed.split_outputs
        self._states: SequenceStates | None = None
        if spec.config.sequence_batching.state:
            self._states = SequenceStates(spec.config, spec.version_path.parent)
        self._tracer = tracer
        self._view = view
        self._lender = lender
        self._recent_runs = recent_runs or RecentRuns()
        self.batches = BegunBatches()
        self.max_frame_bytes = MAX_EXECUTED_BYTES
        # The last batch, if it had sampled members; recorded once its responses are written.
        self.traced: Run | None = None

    def execute(self, frame: bytes) -> bytes:
        """A serialised Batch to a serialised Executed with one response per member; empty if the
        batch was withdrawn.
        """
        started = perf_counter_ns()
        return self.execute_batch(pb.Batch.FromString(frame), started)

    def execute_batch(self, batch: pb.Batch, started: int) -> bytes:
        """As execute(), with the time of perf_counter_ns() at which it began."""
        if not self.batches.begin(batch.id):
            return b""
        lender = self._lender
        # Iterating over a repeated field ends with an exception, which costs more than indexing it.
        members = batch.members[:]
        ids = [member.id for member in members]
        self._recent_runs.begin(self, ids)
        lost: Mapping[int, ErrorStatus] = {}
        if self._states is not None:
            lost = self._states.restore(members, self._replay)
        gathered: GatheredBatch | None = None
        stacked = ran = 0
        failed: str | None = None
        try:
            gathered = gather_members(self._planner, members, self._view)
            if lost:
                gathered = fail_members(gathered, lost)
            inputs = self._stack_inputs(self.signature, gathered)
            stacked = perf_counter_ns()
            outputs: Sequence[Array] = ()
            if gathered.first is not None:
                outputs = self._run_model(inputs, gathered, members)
            ran = perf_counter_ns()
            lend = None if lender is None else lender.lend
            pieces = self._split_outputs(self.signature, gathered, outputs, lend)
            self._check_size(pieces)
        except Exception as error:
            if lender is not None:
                lender.free_lent()
            pieces = self._failures(error, gathered, batch.members)
            failed = error.message if isinstance(error, NereidError) else INTERNAL_MESSAGE
        if lender is not None and lender.lent:
            lender.lent.clear()
        ended = perf_counter_ns()
        stacked = stacked or ended
        ran = ran or ended
        if batch.traced and self._tracer is not None:
            contexts = sampled(batch.members)
            self.traced = Run(contexts, started, stacked, ran, ended, failed)
        times = pb.Executed(
            id=batch.id,
            compute_input_ns=stacked - started,
            compute_infer_ns=ran - stacked,
            compute_output_ns=ended - ran,
        )
        if self._states is not None:
            self._states.write_states(batch, times)
        pieces.append(times.SerializeToString())
        executed = b"".join(pieces)
        self._recent_runs.complete(self, ids, executed)
        return executed

    @property
    def has_states(self) -> bool:
        """Whether it keeps the implicit state of sequences."""
        return self._states is not None

    def _run_model(
        self, inputs: dict[str, Array], gathered: GatheredBatch, members: Sequence[pb.BatchMember]
    ) -> Sequence[Array]:
        if self._states is None:
            return self._model.execute(inputs, gathered.names)
        planned = _planned(members, gathered)
        return self._states.execute(self._model, inputs, gathered.names, planned)

    def _replay(self, member: pb.BatchMember) -> None:
        """Run a request again for the state that it leaves."""
        assert self._states is not None, "a model without implicit state"
        gathered = gather_members(self._planner, [member], self._view)
        if gathered.first is not None:
            inputs = self._stack_inputs(self.signature, gathered)
            self._states.execute(self._model, inputs, gathered.names, [(-1, member)])

    def record_spans(self) -> None:
        """Of the last batch, if it was traced."""
        run, self.traced = self.traced, None
        if self._tracer is not None and run is not None:
            record(self._tracer, self._name, run)

    def _check_size(self, pieces: list[Piece]) -> None:
        if sum(map(len, pieces)) > self.max_frame_bytes:
            raise Internal(
                f"the outputs of a batch of model '{self.signature.model_name}' take more than"
                f" {self.max_frame_bytes} bytes"
            )

    def _failures(
        self, error: Exception, gathered: GatheredBatch | None, members: Sequence[pb.BatchMember]
    ) -> list[Piece]:
        """Responses for a batch that failed as a whole; members' own errors are kept."""
        if not isinstance(error, NereidError):
            _log.error("instance %s failed on a batch", self._name, exc_info=error)
            for member in members:
                request = request_log_extra(member.request_id, member.trace_context)
                _log.error("a request failed with its batch on %s", self._name, extra=request)
            error = Internal(INTERNAL_MESSAGE)
        error_status = ErrorStatus(error.code, error.message, accepted=True)
        outcomes = gathered.outcomes if gathered else [error_status] * len(members)
        return [
            error_response(each if isinstance(each, ErrorStatus) else error_status)
            for each in outcomes
        ]
