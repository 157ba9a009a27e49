"""Execution of batches of arrays on a model: Batch messages in, Executed messages out."""

# layout: compiled

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, cast

from nereid.backends import TensorParts, capabilities_of
from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError, ProtocolError
from nereid.core.tensors.classification import read_labels
from nereid.core.tensors.datatypes import BYTES
from nereid.core.wire.executed import encode_executed
from nereid.core.wire.messages import ErrorStatus
from nereid.observability.logging import request_log_extra
from nereid_executor.batch.array_batch import ArrayBatch
from nereid_executor.batch.arrays import (
    gather_members,
    input_parts,
    split_outputs,
    stack_inputs,
)
from nereid_executor.batch.batch_reader import (
    BatchMessage,
    BatchRequest,
    parse_batch,
    read_batch,
)
from nereid_executor.batch.lifecycle.executions import NO_EXECUTIONS
from nereid_executor.batch.lifecycle.received_batches import ReceivedBatches
from nereid_executor.batch.lone_runs import LoneRuns
from nereid_executor.batch.mixed_shapes import MixedShapes, mixes_shapes
from nereid_executor.batch.request_plan import Planner, signature_of
from nereid_executor.batch.responses import MAX_EXECUTED_BYTES, error_response
from nereid_executor.batch.stateful_model import StatefulModel
from nereid_executor.batch.tracing import Run, record, sampled
from nereid_executor.core.recent_runs import RecentRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nereid.backends import InstanceSpec, Model, PipelinedModel
    from nereid.core.tensors.tensors import Array
    from nereid.observability.tracing import Tracer
    from nereid_executor.batch.arrays import GatheredBatch, Lend, Piece, View
    from nereid_executor.batch.lifecycle.executions import Executions
    from nereid_executor.batch.request_plan import Signature
    from nereid_executor.batch.stateful_model import StackInputs
    from nereid_executor.batch.warmup import WarmupBatch
    from nereid_executor.core.nvtx_ranges import NvtxRanges
    from nereid_executor.core.shared_tensors import OutputLender

    SplitOutputs = Callable[[Signature, GatheredBatch, Sequence[Array], Lend | None], list[Piece]]

_log = logging.getLogger(__name__)

# After a batch with more BYTES elements, freed memory is returned to the system. Otherwise the C
# library would keep most of it.
_MANY_OBJECTS: Final = 1 << 16


class BatchRunner:
    """Executes batches on one loaded model. Only its instance's thread uses it."""

    def __init__(  # noqa: PLR0913 (what most models need comes by keyword)
        self,
        spec: InstanceSpec,
        model: Model,
        tracer: Tracer | None = None,
        view: View | None = None,
        lender: OutputLender | None = None,
        *,
        recent_runs: RecentRuns | None = None,
        on_freed: Callable[[int], None] | None = None,
        executions: Executions = NO_EXECUTIONS,
        ranges: NvtxRanges | None = None,
    ) -> None:
        self._executions = executions
        # These fields describe the last finished batch.
        self._last_number = self._last_size = self._last_started_ns = 0
        self._last_input_ns = self._last_infer_ns = self._last_output_ns = 0
        self._last_frame_bytes = 0
        self._name = spec.name
        capabilities = capabilities_of(model)
        self.signature = signature_of(
            spec.config,
            spec.version,
            model.description,
            bytes_as_text=capabilities.bytes_as_text,
            labels=read_labels(spec.config, spec.version_path.parent),
        )
        if capabilities.escapes_bytes:
            self.signature = replace(self.signature, escapes_bytes=True)
        self._planner = Planner(self.signature)
        stack: StackInputs = stack_inputs
        self._split_outputs: SplitOutputs = split_outputs
        if mixes_shapes(spec.config):
            own = capabilities.ragged_outputs
            on_gpu = spec.gpu is not None
            mixed = MixedShapes(spec.config, self.signature, own, pads_to_bucket=on_gpu)
            stack, self._split_outputs = mixed.stack_inputs, mixed.split_outputs
        self._view = view
        # `None` if the model has no implicit state.
        self._states: StatefulModel | None = None
        # `_inputs_of` makes the model's inputs from a batch. `_execute` returns the outputs, or
        # `None` if they are collected later.
        self._inputs_of: Callable[[Signature, GatheredBatch], Any] = stack
        self._execute: Callable[[Any, list[str]], Sequence[Array] | None] = model.execute
        self._pipelined: PipelinedModel | None = None
        self._lone_runs: LoneRuns | None = None
        depth = 1
        if spec.config.sequence_batching.state:
            self._states = StatefulModel(spec, model, self._planner, stack, view)
            self._execute = self._states.execute
        elif capabilities.pipeline_depth:
            self._inputs_of = input_parts if stack is stack_inputs else partial(_whole_parts, stack)
            self._pipelined = pipelined = cast("PipelinedModel", model)
            self._execute = pipelined.submit_batch
            depth = capabilities.pipeline_depth
        elif stack is stack_inputs and capabilities.leaves_arrays and ranges is None:
            self._lone_runs = LoneRuns(self.signature)
        if ranges is not None:
            self._inputs_of = ranges.around(f"{spec.name} input", self._inputs_of)
            self._execute = ranges.around(f"{spec.name} infer", self._execute)
            self._split_outputs = ranges.around(f"{spec.name} output", self._split_outputs)
        self.read: Callable[[bytes], BatchMessage] = (
            read_batch if self._states is None else parse_batch
        )
        self.has_states = self._states is not None
        self.received: ReceivedBatches[ArrayBatch] = ReceivedBatches(depth)
        self._tracer = tracer
        self._lender = lender
        self._lend = None if lender is None else lender.lend
        self._recent_runs = recent_runs or RecentRuns()
        has_strings = any(tensor.datatype == BYTES for tensor in self.signature.inputs.values())
        self._on_freed = on_freed if has_strings else None
        self.max_frame_bytes = MAX_EXECUTED_BYTES
        # The last batch, if it is traced. Its spans are recorded after its responses are sent.
        self.traced: Run | None = None

    def execute(self, frame: bytes) -> bytes:
        """Execute a Batch that no scheduler has sent; return its Executed message."""
        return self._execute_message(self.read(frame))

    def execute_warmup(self, warmup: WarmupBatch) -> bytes:
        """Execute a warm-up's batch, whose requests share tensors; return its Executed message."""
        if self._states is not None:
            return self.execute(warmup.to_message().SerializeToString())
        request = BatchRequest(0, warmup.head, [*warmup.tensors], "", b"", False)
        return self._execute_message(BatchMessage(0, [request] * warmup.size, warmup.byte_count))

    def _execute_message(self, message: BatchMessage) -> bytes:
        batch = self.begin(message, perf_counter_ns(), sent=False)
        assert batch is not None, "a batch that nobody can give back"
        reply = self.finish(batch)
        self.received.end(batch)
        return reply

    def begin(
        self, message: BatchMessage, started_ns: int, *, sent: bool = True
    ) -> ArrayBatch | None:
        """Begin a batch; return `None` if it was withdrawn. finish() reports failures.

        sent: False if no scheduler has sent the batch. Raises ProtocolError (received_batches).
        """
        received = self.received
        if sent and not received.read(message.id):
            return None
        requests = message.requests
        if not requests and self._states is None:
            raise ProtocolError(f"batch {message.id} has no requests")
        ids = [request.id for request in requests]
        batch = ArrayBatch(message, ids, started_ns)
        received.begin(batch)
        self._recent_runs.begin(batch, ids)
        try:
            gathered = gather_members(self._planner, requests, self._view)
            if self._states is not None:
                gathered = self._states.begin(message.members, gathered)
            batch.gathered = gathered
            if gathered.first is None:
                batch.outputs, batch.stacked_ns = (), perf_counter_ns()
                return batch
            lone_run = gathered.first.lone_run
            if lone_run is not None and len(gathered.outcomes) == 1:
                lone_run.fill(gathered)
                batch.lone_run, inputs = lone_run, lone_run.inputs
            else:
                inputs = self._inputs_of(self.signature, gathered)
            batch.stacked_ns = perf_counter_ns()
            batch.outputs = outputs = self._execute(inputs, gathered.names)
            if outputs is None:
                # A PipelinedModel copies its inputs itself, which counts as making them.
                batch.stacked_ns = perf_counter_ns()
        except Exception as error:
            batch.error = error
        return batch

    def is_complete(self, oldest: ArrayBatch) -> bool:
        """Return whether finish() can return without waiting."""
        there = oldest.outputs is not None or oldest.error is not None
        return there or self._pipelined is None or self._pipelined.is_batch_complete()

    def finish(self, oldest: ArrayBatch) -> bytes:
        """Return the serialised Executed of the oldest batch, with a response for each member."""
        lender = self._lender
        failed: str | None = None
        pieces: list[Piece]
        try:
            outputs = oldest.outputs
            if outputs is None:
                if oldest.error is not None:
                    raise oldest.error
                assert self._pipelined is not None, "a batch that was not executed"
                outputs = self._pipelined.collect_batch()
            ran_ns = perf_counter_ns()
            gathered = oldest.gathered
            assert gathered is not None, "executed, but not gathered"
            pieces = self._pieces_of(oldest, gathered, outputs)
        except Exception as error:
            # This breaks a reference cycle: the traceback refers to this frame, the frame to the
            # batch.
            oldest.error = None
            failed = error.message if isinstance(error, NereidError) else INTERNAL_MESSAGE
            ran_ns = perf_counter_ns()
            oldest.stacked_ns = oldest.stacked_ns or ran_ns
            if lender is not None:
                lender.free_lent()
            pieces = self._failures(error, oldest.gathered, oldest.message.requests)
        if lender is not None and lender.lent:
            lender.lent.clear()
        ended_ns = perf_counter_ns()
        message, stacked_ns = oldest.message, oldest.stacked_ns
        if message.traced and self._tracer is not None:
            times = (oldest.started_ns, stacked_ns, ran_ns, ended_ns)
            self.traced = Run(sampled(message.requests), *times, failed)
        number, started_ns = oldest.id, oldest.started_ns
        input_ns, infer_ns, output_ns = (
            stacked_ns - started_ns,
            ran_ns - stacked_ns,
            ended_ns - ran_ns,
        )
        pieces.append(encode_executed(number, input_ns, infer_ns, output_ns))
        self._last_number, self._last_size = number, len(oldest.ids)
        self._last_started_ns, self._last_frame_bytes = started_ns, message.frame_bytes
        self._last_input_ns, self._last_infer_ns = input_ns, infer_ns
        self._last_output_ns = output_ns
        if self._states is not None:
            # In protobuf, concatenated messages parse as one merged message.
            pieces.append(self._states.written_states(message).SerializeToString())
        if self._on_freed is not None and _count_objects(oldest.gathered) > _MANY_OBJECTS:
            self._on_freed(0)
        frame = b"".join(pieces)
        self._recent_runs.complete(oldest, oldest.ids, frame)
        return frame

    def _pieces_of(
        self, batch: ArrayBatch, gathered: GatheredBatch, outputs: Sequence[Array]
    ) -> list[Piece]:
        if batch.lone_run is not None:
            lone = batch.lone_run.pieces_of(outputs)
            if lone is not None:
                return lone
        pieces = self._split_outputs(self.signature, gathered, outputs, self._lend)
        if self._lone_runs is not None:
            self._lone_runs.learn(gathered, outputs)
        if sum(map(len, pieces)) > self.max_frame_bytes:
            raise Internal(
                f"the outputs of a batch of model '{self.signature.model_name}' take more than"
                f" {self.max_frame_bytes} bytes"
            )
        return pieces

    def record_execution(self, reply_bytes: int) -> None:
        """Record for timelines that the reply to the last batch was written."""
        self._executions.record(
            perf_counter_ns(),
            self._last_started_ns,
            self._last_number,
            self._last_size,
            self._last_input_ns,
            self._last_infer_ns,
            self._last_output_ns,
            self._last_frame_bytes,
            reply_bytes,
        )

    def record_spans(self) -> None:
        """Record the spans of the last batch, if it was traced."""
        run, self.traced = self.traced, None
        if self._tracer is not None and run is not None:
            record(self._tracer, self._name, run)

    def abandon(self) -> None:
        """Finish the begun batches. RecentRuns keeps the responses for the next scheduler."""
        for batch in self.received.lose_all():
            self.finish(batch)

    def _failures(
        self, error: Exception, gathered: GatheredBatch | None, requests: Sequence[BatchRequest]
    ) -> list[Piece]:
        """Return the responses of a batch that failed as a whole. Members keep their own errors."""
        if not isinstance(error, NereidError):
            _log.error("instance %s failed on a batch", self._name, exc_info=error)
            for request in requests:
                extra = request_log_extra(request.request_id, request.trace_context)
                _log.error("a request failed with its batch on %s", self._name, extra=extra)
            error = Internal(INTERNAL_MESSAGE)
        error_status = ErrorStatus(error.code, error.message, accepted=True)
        outcomes = gathered.outcomes if gathered else [error_status] * len(requests)
        return [
            error_response(outcome if isinstance(outcome, ErrorStatus) else error_status)
            for outcome in outcomes
        ]


def _count_objects(gathered: GatheredBatch | None) -> int:
    tensors = () if gathered is None else gathered.tensors
    return sum(len(raw) for raws in tensors for raw in raws if isinstance(raw, list))


def _whole_parts(
    stack: StackInputs, signature: Signature, gathered: GatheredBatch
) -> Mapping[str, TensorParts]:
    return {
        name: TensorParts([array.reshape(-1).view("u1").data], array.shape, array.dtype)
        for name, array in stack(signature, gathered).items()
    }
