"""Executes batches as arrays on one loaded model: at once, or several at a time if pipelined."""

# layout: compiled

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, cast

from nereid.backends import ModelLostError, TensorParts, capabilities_of
from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError, ProtocolError
from nereid.core.tensors.classification import read_labels
from nereid.core.tensors.datatypes import BYTES
from nereid.core.wire.executed import encode_executed
from nereid.core.wire.messages import ErrorStatus
from nereid.observability.logging import request_log_extra
from nereid_executor.batch.arrays import (
    gather_members,
    input_parts,
    split_outputs,
    stack_inputs,
)
from nereid_executor.batch.kept_arrays import KeptArrays
from nereid_executor.batch.lifecycle.received_batches import ReceivedBatch, ReceivedBatches
from nereid_executor.batch.mixed_shapes import MixedShapes, mixes_shapes
from nereid_executor.batch.request_plan import Planner, signature_of
from nereid_executor.batch.responses import MAX_EXECUTED_BYTES, error_response
from nereid_executor.batch.stateful_model import StatefulModel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from nereid.backends import InstanceSpec, Model, PipelinedModel
    from nereid.core.tensors.tensors import Array
    from nereid.pb import nereid_pb2 as pb
    from nereid_executor.batch.arrays import GatheredBatch, Lend, Piece, View
    from nereid_executor.batch.batch_reader import BatchMessage, BatchRequest
    from nereid_executor.batch.frame_stream import FrameStream
    from nereid_executor.batch.request_plan import Signature
    from nereid_executor.batch.stateful_model import StackInputs
    from nereid_executor.core.nvtx_ranges import NvtxRanges
    from nereid_executor.core.shared_tensors import OutputLender

    Progress = Iterable[tuple[ReceivedBatch, bytes | None]]
    SplitOutputs = Callable[[Signature, GatheredBatch, Sequence[Array], Lend | None], list[Piece]]

_log = logging.getLogger(__name__)

# After a batch with more BYTES elements, freed memory is returned to the system. Otherwise the C
# library would keep most of it.
_MANY_OBJECTS: Final = 1 << 16
# Seconds between polls: the thread cannot wait for a socket and a device at the same time.
_POLL_S: Final = 100e-6


class ArrayBatch(ReceivedBatch):
    """A batch of arrays."""

    def __init__(self, message: BatchMessage, ids: Sequence[int], started_ns: int) -> None:
        super().__init__(message.id, message.id, ids, started_ns, message.frame_bytes)
        self.message = message
        self.gathered: GatheredBatch | None = None
        # `None` while the model executes the batch, and if the batch failed.
        self.outputs: Sequence[Array] | None = None
        self.error: Exception | None = None


class ArrayAdapter:
    """Executes a runner's batches on a Model or a PipelinedModel."""

    def __init__(
        self,
        spec: InstanceSpec,
        model: Model,
        *,
        view: View | None = None,
        on_freed: Callable[[int], None] | None = None,
        ranges: NvtxRanges | None = None,
    ) -> None:
        """view: reads tensors in shared memory; `None` refuses them."""
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
        depth = 1
        if spec.config.sequence_batching.state:
            self._states = StatefulModel(spec, model, self._planner, stack, view)
            self._execute = self._states.execute
        elif capabilities.pipeline_depth:
            self._inputs_of = input_parts if stack is stack_inputs else partial(_whole_parts, stack)
            self._pipelined = pipelined = cast("PipelinedModel", model)
            self._execute = pipelined.submit_batch
            depth = capabilities.pipeline_depth
        elif stack is stack_inputs and capabilities.leaves_arrays:
            self._inputs_of = KeptArrays().stack_inputs
        if ranges is not None:
            self._inputs_of = ranges.around(f"{spec.name} input", self._inputs_of)
            self._execute = ranges.around(f"{spec.name} infer", self._execute)
            self._split_outputs = ranges.around(f"{spec.name} output", self._split_outputs)
        self.needs_members = self.has_states = self._states is not None
        self.received: ReceivedBatches[ArrayBatch] = ReceivedBatches(depth)
        self._lender: OutputLender | None = None
        self._lend: Lend | None = None
        has_strings = any(tensor.datatype == BYTES for tensor in self.signature.inputs.values())
        self._on_freed = on_freed if has_strings else None
        self.max_frame_bytes = MAX_EXECUTED_BYTES
        # Frames that were read while no more batches could begin.
        self._unread: deque[bytes] = deque()

    def begin_tenure(self, lender: OutputLender | None) -> None:
        """Forget all sequences, and lend memory for responses from this lender."""
        self._lender = lender
        self._lend = None if lender is None else lender.lend
        if self._states is not None:
            self._states.forget_sequences()

    def begin_stream(self, stream: FrameStream) -> None:  # noqa: ARG002
        """Drop what was read from an earlier stream."""
        self._unread.clear()

    def wait(
        self, stream: FrameStream, stopping: Callable[[], bool]
    ) -> tuple[Sequence[bytes], Collection[int]]:
        """Wait for a frame, or until the oldest batch can be completed.

        Returns the frame, or the batch's number for collect(); nothing at the stream's end.
        """
        if not self.received.executing:
            frame = stream.receive()
            return () if frame is None else (frame,), ()
        oldest = next(iter(self.received.executing.values()))
        while self.received.may_begin and not stopping():
            if not self._unread:
                self._unread.extend(stream.read_messages())
            if self._unread:
                return (self._unread.popleft(),), ()
            if stream.ended:
                return (), ()
            if self.is_complete(oldest):
                break
            time.sleep(_POLL_S)
        return (), (oldest.number,)

    def wait_for_model(self, limit_s: float | None = None) -> Collection[int]:  # noqa: ARG002
        """Return the oldest batch, for whose outputs collect() waits."""
        oldest = self.received.oldest()
        return () if oldest is None else (oldest.number,)

    def is_complete(self, oldest: ArrayBatch) -> bool:
        """Return whether collect() can return without waiting."""
        there = oldest.outputs is not None or oldest.error is not None
        return there or self._pipelined is None or self._pipelined.is_batch_complete()

    def open_batches(self, message: BatchMessage, started_ns: int) -> Sequence[ArrayBatch]:
        """Begin the batch of a message."""
        batch = ArrayBatch(message, [request.id for request in message.requests], started_ns)
        self.received.begin(batch)
        return (batch,)

    def execute(self, batch: ReceivedBatch) -> Progress:
        """Give a begun batch to the model; its failure is reported with its responses.

        Raises ModelLostError if the model was lost, which fails the batch later.
        """
        assert isinstance(batch, ArrayBatch), "a batch of another adapter"
        message = batch.message
        try:
            gathered = gather_members(self._planner, message.requests, self._view)
            if self._states is not None:
                gathered = self._states.begin(message.members, gathered)
            batch.gathered = gathered
            if gathered.first is None:
                batch.outputs, batch.begun_ns = (), perf_counter_ns()
            else:
                inputs = self._inputs_of(self.signature, gathered)
                batch.begun_ns = perf_counter_ns()
                batch.outputs = outputs = self._execute(inputs, gathered.names)
                if outputs is None:
                    # A PipelinedModel copies its inputs itself, which counts as making them.
                    batch.begun_ns = perf_counter_ns()
        except ModelLostError:
            raise
        except Exception as error:
            batch.error = error
        # Batches of a pipeline are completed in order.
        return (self._complete(batch),) if self._pipelined is None else ()

    def collect(self, ready: Collection[int]) -> Progress:
        """Complete batches by their numbers, once the model has executed them."""
        return [self._complete(self.received.executing[number]) for number in ready]

    def finish_lost(self) -> Progress:
        """Finish the batches of an ended stream, since they cannot be cancelled."""
        return [(batch, self._finish(batch)) for batch in self.received.lose_all()]

    def _complete(self, batch: ArrayBatch) -> tuple[ArrayBatch, bytes]:
        frame = self._finish(batch)
        self.received.advance(batch, executed=True, waiting=False)
        return batch, frame

    def _finish(self, batch: ArrayBatch) -> bytes:
        """Return the serialised Executed of the oldest batch, with a response for each request."""
        lender = self._lender
        pieces: list[Piece]
        try:
            outputs = batch.outputs
            if outputs is None:
                if batch.error is not None:
                    raise batch.error
                assert self._pipelined is not None, "a batch that was not executed"
                outputs = self._pipelined.collect_batch()
            responded_ns = perf_counter_ns()
            gathered = batch.gathered
            assert gathered is not None, "executed, but not gathered"
            pieces = self._split_outputs(self.signature, gathered, outputs, self._lend)
            if sum(map(len, pieces)) > self.max_frame_bytes:
                raise Internal(
                    f"the outputs of a batch of model '{self.signature.model_name}' take more than"
                    f" {self.max_frame_bytes} bytes"
                )
        except Exception as error:
            # This breaks a reference cycle: the traceback refers to this frame, the frame to the
            # batch.
            batch.error = None
            batch.failure = error.message if isinstance(error, NereidError) else INTERNAL_MESSAGE
            responded_ns = perf_counter_ns()
            batch.begun_ns = batch.begun_ns or responded_ns
            if lender is not None:
                lender.free_lent()
            pieces = self._failures(error, batch.gathered, batch.message.requests)
        if lender is not None and lender.lent:
            lender.lent.clear()
        begun_ns = batch.begun_ns
        batch.responded_ns = responded_ns
        batch.ended_ns = ended_ns = perf_counter_ns()
        input_ns, infer_ns = begun_ns - batch.started_ns, responded_ns - begun_ns
        pieces.append(encode_executed(batch.id, input_ns, infer_ns, ended_ns - responded_ns))
        if self._states is not None:
            # In protobuf, concatenated messages parse as one merged message.
            returned = self._states.returned_states(batch.message.members)
            pieces.append(returned.SerializeToString())
        if self._on_freed is not None and _count_objects(batch.gathered) > _MANY_OBJECTS:
            self._on_freed(0)
        return b"".join(pieces)

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

    def control_requests(self, controls: Iterable[pb.MemberControl]) -> None:  # noqa: ARG002
        """Raise ProtocolError, since a batch of arrays is executed as a whole."""
        raise ProtocolError("a control for a request of a model that takes none")

    def export_states(self, slots: Iterable[int], reply: pb.Executed) -> None:
        """Add the states of slots to a reply, as far as they fit, and forget them."""
        if self._states is not None:
            self._states.export_states(slots, reply)

    def fail_batches(self, why: str) -> Progress:
        """Fail the begun batches of a lost model."""
        text = f"Failed to process the request(s) for model instance '{self._name}': {why}"
        for batch in self.received.begun():
            batch.error = Internal(text)
            yield self._complete(batch)


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
