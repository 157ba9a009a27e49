"""The batches of one model that executes requests, from the scheduler's frame to the last response.

The module does no I/O: its input is messages and responses, its output requests and frames. Two
transports use it: an executor's thread between stream and model (request_adapter), and a worker
process that serves the stream itself (backends.python.direct). received_batches describes the
states of a batch. On a change of state, these frames are sent:

    state       next        frame
    EXECUTING   COMPLETE    whole: all responses, in the order of the members
    EXECUTING   DEFERRED    partial: the responses so far
    DEFERRED    any         partial: the new responses

A decoupled model's responses are sent as they come, all in partial frames. A frame is marked as
busy while its batch is EXECUTING.
"""

# layout: compiled

from __future__ import annotations

import logging
from operator import itemgetter
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import NereidError
from nereid.core.wire.messages import error_status_of
from nereid.model_config.reshapes import input_reshapes
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.batch_reader import BatchMessage, request_of
from nereid_executor.batch.classification import Classes
from nereid_executor.batch.lifecycle.received_batches import (
    COMPLETE,
    DEFERRED,
    EXECUTING,
    ReceivedBatch,
    ReceivedBatches,
)
from nereid_executor.batch.request_states import RequestStates
from nereid_executor.batch.requests import RequestReader
from nereid_executor.batch.response_writer import ResponseWriter
from nereid_executor.batch.responses import (
    RESCHEDULED,
    append_response,
    error_response,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from nereid.backends import Request, Response
    from nereid.core.tensors.classification import Classification
    from nereid.core.wire.messages import ErrorStatus
    from nereid.pb import model_config_pb2
    from nereid.shm.reference import SharedMemory
    from nereid_executor.batch.arrays import Piece
    from nereid_executor.batch.request_states import MemberState

_log = logging.getLogger(__name__)

_batch_index: Final = itemgetter(0)
# Most batches share this empty table, so nothing may write to it.
_NONE: dict[int, Any] = {}


class OpenBatch(ReceivedBatch):
    """A batch whose requests wait for responses. One thread uses it at a time.

    A model index counts the requests that the model got. A batch index counts all requests of the
    batch, malformed ones too.
    """

    def __init__(
        self,
        message: BatchMessage,
        number: int,
        started_ns: int,
        batch_indices: Sequence[int],
        *,
        decoupled: bool,
    ) -> None:
        ids = [request.id for request in message.requests]
        super().__init__(message.id, number, ids, started_ns, message.frame_bytes)
        # The model's requests, until the model gets them.
        self.requests: list[Request] = []
        # Key: a model index. Value: outputs that are requested as classes, or shared memory.
        self.classes: dict[int, Mapping[str, Classification]] = _NONE
        self.output_buffers: dict[int, SharedMemory] = _NONE
        # Key: a model index. Value: the state of a sequence, if the model has implicit state.
        self.member_states: dict[int, MemberState] = _NONE
        # Adds the states that the scheduler wants to the frame with all responses.
        self.return_states: Callable[[Iterable[MemberState], pb.Executed], None] | None = None
        # Object by which the model knows this batch, if the transport needs one.
        self.execution: Any = None
        self._decoupled = decoupled
        self._batch_indices = batch_indices
        # Model indices of requests without a final response.
        self._open = {*range(len(batch_indices))}
        # A tuple has the batch index, whether another response follows, and the pieces.
        self._unsent: list[tuple[int, bool, Sequence[Piece]]] = []

    def reject_request(self, batch_index: int, error_status: ErrorStatus) -> None:
        """Respond to a malformed request. The model does not get the request."""
        self._unsent.append((batch_index, False, (error_response(error_status),)))

    def is_open(self, model_index: int) -> bool:
        """Return whether a request still waits for its final response."""
        return model_index in self._open

    def open_requests(self) -> list[int]:
        """Return the model indices of requests that wait for their final response, in order."""
        return sorted(self._open)

    def model_index(self, batch_index: int) -> int | None:
        """Return a request's model index; `None` if the model did not get the request."""
        indices = self._batch_indices
        return indices.index(batch_index) if batch_index in indices else None

    def add_response(self, model_index: int, pieces: Sequence[Piece]) -> None:
        """Add a response to an open request. Another response will follow."""
        self._unsent.append((self._batch_indices[model_index], True, pieces))

    def add_final_responses(self, responses: Iterable[tuple[int, Sequence[Piece]]]) -> None:
        """Add the last response of each of these open requests."""
        remaining, batch_indices, unsent = self._open, self._batch_indices, self._unsent
        for model_index, pieces in responses:
            remaining.discard(model_index)
            unsent.append((batch_indices[model_index], False, pieces))

    def fail_open_requests(self, error_status: ErrorStatus) -> None:
        """Add an error as the last response of each open request."""
        pieces = (error_response(error_status),)
        self.add_final_responses([(index, pieces) for index in self.open_requests()])

    def next_frame(
        self, received: ReceivedBatches[OpenBatch], responded_ns: int = 0, *, executed: bool = False
    ) -> bytes | None:
        """Advance the batch after responses or its execution; return a frame to send, if any."""
        before = self.state
        self.responded_ns = responded_ns
        received.advance(self, executed=executed, waiting=bool(self._open))
        if before is EXECUTING and not self._decoupled:
            if self.state is EXECUTING:
                return None
            if self.state is COMPLETE:
                return self._whole_frame(responded_ns)
        if self.state is before and not self._unsent:
            return None
        frame = pb.Executed(id=self.id) if before is DEFERRED else self._timed_frame(responded_ns)
        return self._partial_frame(frame)

    def _whole_frame(self, responded_ns: int) -> bytes:
        unsent = self._unsent
        if len(unsent) > 1:
            unsent.sort(key=_batch_index)
        pieces: list[Piece] = []
        for _, _, response in unsent:
            pieces += response
        frame = self._timed_frame(responded_ns)
        if self.return_states is not None:
            self.return_states(self.member_states.values(), frame)
        pieces.append(frame.SerializeToString())
        return b"".join(pieces)

    def _partial_frame(self, frame: pb.Executed) -> bytes:
        frame.partial, frame.busy = True, self.state is EXECUTING
        unsent, self._unsent = self._unsent, []
        for batch_index, more, response in unsent:
            append_response(frame, batch_index, response)
            if more:
                frame.responses[-1].more = True
        return frame.SerializeToString()

    def _timed_frame(self, responded_ns: int) -> pb.Executed:
        begun_ns = self.begun_ns or responded_ns
        self.ended_ns = perf_counter_ns()
        return pb.Executed(
            id=self.id,
            compute_input_ns=begun_ns - self.started_ns,
            compute_infer_ns=responded_ns - begun_ns,
            compute_output_ns=self.ended_ns - responded_ns,
        )


class Replay(OpenBatch):
    """Requests that are run again only for the states that they leave. Responses are dropped."""

    def drop_response(self, response: Response) -> Response:
        """Return a response without its outputs. If it is an error, drop its sequence's state."""
        if response.error_status is not None:
            self.member_states[response.member].tensors.clear()
        return response._replace(head=b"", tensors=())

    def fail_open_requests(self, error_status: ErrorStatus) -> None:
        """End the open requests. The states of their sequences are lost."""
        for model_index in self.open_requests():
            self.member_states[model_index].tensors.clear()
        super().fail_open_requests(error_status)

    def next_frame(
        self, received: ReceivedBatches[OpenBatch], responded_ns: int = 0, *, executed: bool = False
    ) -> None:
        """Advance the batch, but drop the frame."""
        super().next_frame(received, responded_ns, executed=executed)


class OpenBatches:
    """The batches of one model (`received`), with their reader and their writer."""

    def __init__(self, config: model_config_pb2.ModelConfig, model_path: Path, name: str) -> None:
        self._states: RequestStates | None = None
        if config.sequence_batching.state:
            self._states = RequestStates(config, model_path)
        # True if messages must be parsed with their members.
        self.needs_members = self._states is not None
        decoupled = config.model_transaction_policy.decoupled
        # States can move between instances, unless responses may change them at any time.
        iterative = config.sequence_batching.iterative_sequence
        self.has_states = self._states is not None and not decoupled and not iterative
        # This class reads the states in the outputs, so they need no buffer in shared memory.
        self.writer = ResponseWriter(predictable=not decoupled and self._states is None)
        self._name = name
        self._decoupled = decoupled
        self._classes = Classes(config, model_path)
        outputs = tuple(tensor.name for tensor in config.output)
        reader = RequestReader(outputs, input_reshapes(config))
        self._read_request = reader.read_request
        self.write_response = self.writer.write_response
        self.received: ReceivedBatches[OpenBatch] = ReceivedBatches(decoupled=decoupled)

    def begin_batch(
        self,
        message: BatchMessage,
        number: int,
        started_ns: int,
        kind: type[OpenBatch] = OpenBatch,
        execution: Any = None,
    ) -> OpenBatch:
        """Begin a batch; return it with the model's requests. Malformed ones get an error."""
        writer, read_request = self.writer, self._read_request
        stateful = self._states
        batch_indices: list[int] = []
        requests: list[Request] = []
        classes: dict[int, Mapping[str, Classification]] = {}
        output_buffers: dict[int, SharedMemory] = {}
        states: dict[int, MemberState] = {}
        rejected: list[tuple[int, ErrorStatus]] = []
        buffer = None
        for batch_index, received in enumerate(message.requests):
            if writer.expected_bytes:
                buffer = writer.allocate_buffer()
            try:
                if stateful is None:
                    request = read_request(received, buffer)
                else:
                    member = message.members[batch_index]
                    request, states[len(requests)] = stateful.read_request(
                        member, received, buffer, read_request
                    )
            except NereidError as error:
                rejected.append((batch_index, error_status_of(error)))
                writer.release_buffer(buffer)
                continue
            if request.spec.classes:
                # Classes are computed from the outputs before anything is sent.
                classes[len(requests)] = request.spec.classes
                writer.release_buffer(buffer)
                request = request._replace(output_buffer=None)
            elif buffer is not None:
                output_buffers[len(requests)] = buffer
            batch_indices.append(batch_index)
            requests.append(request)
        batch = kind(message, number, started_ns, batch_indices, decoupled=self._decoupled)
        batch.requests, batch.execution = requests, execution
        batch.classes, batch.output_buffers = classes, output_buffers
        if stateful is not None:
            batch.member_states, batch.return_states = states, stateful.return_states
        for batch_index, error_status in rejected:
            batch.reject_request(batch_index, error_status)
        self.received.begin(batch)
        return batch

    def forget_sequences(self) -> None:
        """Forget all sequences."""
        if self._states is not None:
            self._states.table.clear()

    def begin_replays(
        self, message: BatchMessage, next_number: Callable[[], int]
    ) -> Iterator[OpenBatch]:
        """Yield batches that replay what the batch's sequences had executed on other instances.

        Each must be complete before the next begins, and the last one before the batch begins.
        """
        if self._states is None:
            return
        table = self._states.table
        for members in table.replays(message.members):
            replayed = BatchMessage(0, [request_of(member) for member in members], members=members)
            batch = self.begin_batch(replayed, next_number(), 0, Replay)
            for batch_index, member in enumerate(members):
                if batch.model_index(batch_index) is None:
                    table.lose(member.sequence_slot)
            yield batch

    def export_states(self, slots: Iterable[int], reply: pb.Executed) -> None:
        """Add the states of slots to a reply, as far as they fit, and forget them."""
        if self._states is not None:
            self._states.table.export_states(slots, reply)

    def controlled_requests(
        self, controls: Iterable[pb.MemberControl]
    ) -> Iterator[tuple[OpenBatch, int, int]]:
        """Yield the batch, the model index and the kind of each control.

        Raises ProtocolError for a batch that has not come.
        """
        for control in controls:
            batch = self.received.controlled(control.batch)
            model_index = None if batch is None else batch.model_index(control.member)
            if batch is not None and model_index is not None:
                yield batch, model_index, control.kind

    def classify(self, batch: OpenBatch, response: Response) -> Response:
        """Return the response, with classes in place of outputs if the member requests them."""
        wanted = batch.classes.get(response.member)
        return response if wanted is None else self._classes.classify_response(response, wanted)

    def add_responses(self, batch: OpenBatch, responses: Iterable[Response]) -> None:
        """Write and add responses; drop a response for which no request waits."""
        buffers = batch.output_buffers
        for response in responses:
            model_index = response.member
            if not batch.is_open(model_index):
                _log.error("instance %s responded to a request that it does not have", self._name)
                continue
            if self._states is not None:
                response = self._states.keep(response, batch.member_states[model_index])  # noqa: PLW2901
                if type(batch) is Replay:
                    response = batch.drop_response(response)  # noqa: PLW2901
            classified = self.classify(batch, response) if batch.classes else response
            buffer = buffers.pop(model_index, None) if buffers else None
            pieces = self.write_response(classified, buffer)
            if response.more:
                batch.add_response(model_index, pieces)
            else:
                batch.add_final_responses([(model_index, pieces)])

    def reschedule(self, batch: OpenBatch, model_indices: Iterable[int]) -> None:
        """End the requests that the model wants to get again in a later batch."""
        for model_index in model_indices:
            if batch.is_open(model_index):
                self.writer.release_buffer(batch.output_buffers.pop(model_index, None))
                batch.add_final_responses([(model_index, RESCHEDULED)])

    def release_buffers(self, batch: OpenBatch) -> None:
        """Release the buffers of a batch, since nothing will be written to them any more."""
        for buffer in batch.output_buffers.values():
            self.writer.release_buffer(buffer)
        batch.output_buffers.clear()
