"""The batches of one model that executes requests, from the scheduler's frame to the last response.

The module does no I/O: its input is frames and responses, its output requests and frames. Two
transports use it: an executor's thread between stream and model (request_runner), and a worker
process that serves the stream itself (backends.python.direct). received_batches describes the
states of a batch. On a change of state, these frames are sent:

    state       next        frame
    EXECUTING   COMPLETE    whole: all responses, in the order of the members
    EXECUTING   DEFERRED    partial: the responses so far
    DEFERRED    any         partial: the new responses

A decoupled model's responses are sent as they come, all in partial frames. A frame is marked as
busy while its batch is EXECUTING.
"""

from __future__ import annotations

import logging
from operator import itemgetter
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from nereid.core.errors import NereidError, ProtocolError
from nereid.core.wire.messages import error_status_of
from nereid.model_config.reshapes import input_reshapes
from nereid.pb import nereid_pb2 as pb
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
from nereid_executor.batch.tracing import sampled

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

_place = itemgetter(0)
# Most batches share this empty table, so nothing may write to it.
_NONE: dict[int, Any] = {}


class OpenBatch(ReceivedBatch):
    """A batch whose members wait for responses. One thread uses it at a time.

    A member is the index of a request among those that the model got. A place is the index of a
    request in the batch, in which malformed requests count too.
    """

    def __init__(
        self,
        batch_id: int,
        number: int,
        started_ns: int,
        places: Sequence[int],
        *,
        decoupled: bool,
    ) -> None:
        self.id, self.number = batch_id, number
        # The ids of all requests, for RecentRuns.
        self.ids: Sequence[int] = ()
        # Readings of perf_counter_ns(): when the batch came, when the model got it (0 if it did
        # not).
        self.started_ns = started_ns
        self.begun_ns = 0
        # Key: a member. Value: its outputs that are requested as classes, or its shared memory.
        self.classes: dict[int, Mapping[str, Classification]] = _NONE
        self.output_buffers: dict[int, SharedMemory] = _NONE
        # Key: a member. Value: the state of its sequence, if the model has implicit state.
        self.member_states: dict[int, MemberState] = _NONE
        # Adds the states that the scheduler wants to the frame with all responses.
        self.return_states: Callable[[Iterable[MemberState], pb.Executed], None] | None = None
        # Trace contexts of the sampled requests.
        self.trace_contexts: Sequence[bytes] = ()
        # Object by which the model knows this batch, if the transport needs one.
        self.execution: Any = None
        self._decoupled = decoupled
        self._places = places
        # Members without a final response.
        self._open = {*range(len(places))}
        # A tuple has the place, whether another response follows, and the pieces.
        self._unsent: list[tuple[int, bool, Sequence[Piece]]] = []

    def reject_request(self, place: int, error_status: ErrorStatus) -> None:
        """Respond to a malformed request. The model does not get the request."""
        self._unsent.append((place, False, (error_response(error_status),)))

    def is_open(self, member: int) -> bool:
        """Return whether the member still waits for its final response."""
        return member in self._open

    def open_members(self) -> list[int]:
        """Return the members that still wait for their final response, in order."""
        return sorted(self._open)

    def member_at(self, place: int) -> int | None:
        """Return the member at a place; `None` if the model did not get the request."""
        return self._places.index(place) if place in self._places else None

    def add_response(self, member: int, pieces: Sequence[Piece]) -> None:
        """Add a response to an open member. Another response will follow."""
        self._unsent.append((self._places[member], True, pieces))

    def add_final_responses(self, responses: Iterable[tuple[int, Sequence[Piece]]]) -> None:
        """Add the last response of each of these open members."""
        remaining, places, unsent = self._open, self._places, self._unsent
        for member, pieces in responses:
            remaining.discard(member)
            unsent.append((places[member], False, pieces))

    def fail_open_members(self, error_status: ErrorStatus) -> None:
        """Add an error as the last response of each open member."""
        pieces = (error_response(error_status),)
        self.add_final_responses([(member, pieces) for member in self.open_members()])

    def next_frame(
        self, received: ReceivedBatches[OpenBatch], responded_ns: int = 0, *, executed: bool = False
    ) -> bytes | None:
        """Advance the batch after responses or its execution; return a frame to send, if any."""
        before = self.state
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
            unsent.sort(key=_place)
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
        for place, more, response in unsent:
            append_response(frame, place, response)
            if more:
                frame.responses[-1].more = True
        return frame.SerializeToString()

    def _timed_frame(self, responded_ns: int) -> pb.Executed:
        begun_ns = self.begun_ns or responded_ns
        return pb.Executed(
            id=self.id,
            compute_input_ns=begun_ns - self.started_ns,
            compute_infer_ns=responded_ns - begun_ns,
            compute_output_ns=perf_counter_ns() - responded_ns,
        )


class Replay(OpenBatch):
    """Requests that are run again only for the states that they leave. Responses are dropped."""

    def drop_response(self, response: Response) -> Response:
        """Return a response without its outputs. If it is an error, drop the member's state."""
        if response.error_status is not None:
            self.member_states[response.member].tensors.clear()
        return response._replace(head=b"", tensors=())

    def fail_open_members(self, error_status: ErrorStatus) -> None:
        """End the open members. Their states are lost."""
        for member in self.open_members():
            self.member_states[member].tensors.clear()
        super().fail_open_members(error_status)

    def next_frame(
        self, received: ReceivedBatches[OpenBatch], responded_ns: int = 0, *, executed: bool = False
    ) -> None:
        """Advance the batch, but drop the frame."""
        super().next_frame(received, responded_ns, executed=executed)


class OpenBatches:
    """The batches of one model (`received`), with their reader and their writer."""

    def __init__(
        self,
        config: model_config_pb2.ModelConfig,
        model_path: Path,
        name: str,
        *,
        decoupled: bool,
        traced: bool,
    ) -> None:
        self._states: RequestStates | None = None
        if config.sequence_batching.state:
            self._states = RequestStates(config, model_path)
        # States can move between instances, unless responses may change them at any time.
        iterative = config.sequence_batching.iterative_sequence
        self.has_states = self._states is not None and not decoupled and not iterative
        # This class reads the states in the outputs, so they need no buffer in shared memory.
        self.writer = ResponseWriter(predictable=not decoupled and self._states is None)
        self._name = name
        self._decoupled = decoupled
        self._traced = traced
        self._classes = Classes(config, model_path)
        outputs = tuple(tensor.name for tensor in config.output)
        reader = RequestReader(outputs, input_reshapes(config))
        self._read_request = reader.read_request
        self.write_response = self.writer.write_response
        self.received: ReceivedBatches[OpenBatch] = ReceivedBatches(decoupled=decoupled)

    def begin_batch(
        self,
        message: pb.Batch,
        number: int,
        started_ns: int,
        kind: type[OpenBatch] = OpenBatch,
        execution: Any = None,
    ) -> tuple[OpenBatch, list[Request]]:
        """Begin a batch; return it and the model's requests. Malformed ones get an error."""
        members, writer, read_request = message.members, self.writer, self._read_request
        stateful = self._states
        places: list[int] = []
        requests: list[Request] = []
        classes: dict[int, Mapping[str, Classification]] = {}
        output_buffers: dict[int, SharedMemory] = {}
        states: dict[int, MemberState] = {}
        rejected: list[tuple[int, ErrorStatus]] = []
        buffer = None
        # Iteration over a repeated field costs more than indexing.
        for place in range(len(members)):
            if writer.expected_bytes:
                buffer = writer.allocate_buffer()
            try:
                if stateful is None:
                    request = read_request(members[place], buffer)
                else:
                    request, states[len(places)] = stateful.read_request(
                        members[place], buffer, read_request
                    )
            except NereidError as error:
                rejected.append((place, error_status_of(error)))
                writer.release_buffer(buffer)
                continue
            if request.spec.classes:
                # Classes are computed from the outputs before anything is sent.
                classes[len(places)] = request.spec.classes
                writer.release_buffer(buffer)
                request = request._replace(output_buffer=None)
            elif buffer is not None:
                output_buffers[len(places)] = buffer
            places.append(place)
            requests.append(request)
        batch = kind(message.id, number, started_ns, places, decoupled=self._decoupled)
        batch.ids = [member.id for member in members]
        batch.execution = execution
        batch.classes, batch.output_buffers = classes, output_buffers
        if stateful is not None:
            batch.member_states, batch.return_states = states, stateful.return_states
        for place, error_status in rejected:
            batch.reject_request(place, error_status)
        if message.traced and self._traced:
            batch.trace_contexts = sampled(members)
        self.received.begin(batch)
        return batch, requests

    def forget_sequences(self) -> None:
        """Forget all sequences."""
        if self._states is not None:
            self._states.table.clear()

    def begin_replays(
        self, message: pb.Batch, next_number: Callable[[], int]
    ) -> Iterator[tuple[OpenBatch, list[Request]]]:
        """Yield batches that replay what the batch's sequences had executed on other instances.

        Each must be complete before the next begins, and the last one before the batch begins.
        """
        if self._states is None:
            return
        table = self._states.table
        for members in table.replays(message.members):
            replayed = pb.Batch(members=members)
            batch, requests = self.begin_batch(replayed, next_number(), 0, Replay)
            for place, member in enumerate(members):
                if batch.member_at(place) is None:
                    table.lose(member.sequence_slot)
            yield batch, requests

    def begin_export(self, message: pb.Batch) -> None:
        """Note a request for sequences' states; raise ProtocolError if they cannot be given."""
        if not self.has_states:
            raise ProtocolError("states are asked for of a model that gives none away")
        self.received.begin_export(message.id, message.exported_slots)

    def export_frame(self) -> bytes | None:
        """Return a frame with the requested states, or `None` while responses may change them."""
        export = self.received.due_export()
        if self._states is None or export is None:
            return None
        number, slots = export
        reply = pb.Executed(id=number)
        self._states.table.export_states(slots, reply)
        return reply.SerializeToString()

    def controlled_members(
        self, controls: Iterable[pb.MemberControl]
    ) -> Iterator[tuple[OpenBatch, int, int]]:
        """Yield the batch, the member and the kind of each control.

        Raises ProtocolError for a batch that has not come.
        """
        for control in controls:
            batch = self.received.controlled(control.batch)
            member = None if batch is None else batch.member_at(control.member)
            if batch is not None and member is not None:
                yield batch, member, control.kind

    def classify(self, batch: OpenBatch, response: Response) -> Response:
        """Return the response, with classes in place of outputs if the member requests them."""
        wanted = batch.classes.get(response.member)
        return response if wanted is None else self._classes.classify_response(response, wanted)

    def add_responses(self, batch: OpenBatch, responses: Iterable[Response]) -> None:
        """Write and add responses; drop a response for which no member waits."""
        buffers = batch.output_buffers
        for response in responses:
            member = response.member
            if not batch.is_open(member):
                _log.error("instance %s responded to a request that it does not have", self._name)
                continue
            if self._states is not None:
                response = self._states.keep(response, batch.member_states[member])  # noqa: PLW2901
                if type(batch) is Replay:
                    response = batch.drop_response(response)  # noqa: PLW2901
            classified = self.classify(batch, response) if batch.classes else response
            buffer = buffers.pop(member, None) if buffers else None
            pieces = self.write_response(classified, buffer)
            if response.more:
                batch.add_response(member, pieces)
            else:
                batch.add_final_responses([(member, pieces)])

    def reschedule(self, batch: OpenBatch, members: Iterable[int]) -> None:
        """End the members that the model wants to get again in a later batch."""
        for member in members:
            if batch.is_open(member):
                self.writer.release_buffer(batch.output_buffers.pop(member, None))
                batch.add_final_responses([(member, RESCHEDULED)])

    def release_buffers(self, batch: OpenBatch) -> None:
        """Release the buffers of a batch, since nothing will be written to them any more."""
        for buffer in batch.output_buffers.values():
            self.writer.release_buffer(buffer)
        batch.output_buffers.clear()
