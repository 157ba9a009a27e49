"""The scheduler's end of a model instance: a stream that executes one batch at a time, in order."""

# layout: not pure, uses asyncio
# layout: not covered, has a stream

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

from google.protobuf.message import DecodeError

from nereid.core.errors import ProtocolError
from nereid.core.wire.codecs import read_response, remaining_us, write_parameters, write_payloads
from nereid.core.wire.executed import read_executed_times
from nereid.core.wire.messages import ErrorStatus
from nereid.observability.tracing import is_sampled
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.executed_frame import RepeatedResponses
from nereid_scheduler.core.instances.instance_batches import InstanceBatches, SentBatch
from nereid_scheduler.core.requests.batch_frame import plain_batch_frame
from nereid_scheduler.core.requests.entry import Batch
from nereid_scheduler.core.requests.segment_owners import inline_if_there

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.core.wire.executed import Executed
    from nereid.core.wire.messages import InferResponse
    from nereid.rpc import Status
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.core.requests.sequence import SequenceMember


class BatchStream(Protocol):
    """The scheduler's end of an Execute stream; nereid.rpc.Call implements it."""

    def send(self, message: bytes, at_once: bool = False) -> None:
        """Write a message at the end of the event loop's turn, or at once.

        No-op if the stream is broken.
        """

    def finish(self) -> None:
        """End the stream."""

    def fail(self, status: Status, message: str) -> None:
        """End the stream with an error."""


@dataclass(slots=True, eq=False)
class ReadinessQuestion:
    """Question whether a model is ready. A new stream may have another process: ask again."""

    number: int
    stream: BatchStream
    response: asyncio.Future[bool]
    asked: bool = False


def _nothing() -> None:
    """Do nothing, as the instance stays loaded."""


def _cannot_withdraw(batch: int) -> None:
    """Ignore the request: the executor does not support withdrawals."""


class CrashReport(NamedTuple):
    """Report of an executor that an instance's process has crashed."""

    # Last batch that the model had begun to execute.
    begun: int
    error_status: ErrorStatus
    # Number of the stream that ended with the process; 0 stands for the open stream.
    stream: int = 0


@dataclass(slots=True, eq=False)
class RemoteInstance:
    """Instance on an executor, ready when it has a stream. Only its version changes `batches`."""

    id: int
    name: str
    executor: str
    stream: BatchStream | None = None
    batches: InstanceBatches = field(default_factory=InstanceBatches)
    # Revision of the model's files; empty without a response cache.
    revision: bytes = b""
    # Empty on the CPU.
    gpu_uuid: str = ""
    # Called when the instance has no work left; a retiring instance is then unloaded.
    on_idle: Callable[[], None] = _nothing
    accepts_controls: bool = False
    # Number by which the executor's crash reports name the stream; 0 without reports.
    crash_stream: int = 0
    # Reports that came before the end of their stream, by stream number.
    crash_reports: dict[int, CrashReport] = field(default_factory=dict)
    # True if requests and responses may be in shared memory.
    shares: bool = True
    reports_readiness: bool = False
    question: ReadinessQuestion | None = None
    # `has_states`: states can be exported. `handing_over`: an export is in progress.
    has_states: bool = False
    handing_over: bool = False
    # True if the instance keeps its sequences until they are over, and is then unloaded.
    keeps_sequences: bool = False
    # True if a batch may wait at the instance.
    accepts_waiting: bool = False
    # Reads responses without a parser if they are like an earlier one.
    repeated_responses: RepeatedResponses = field(default_factory=RepeatedResponses)
    # Asks the executor for a batch (by number) that has not begun.
    request_withdrawal: Callable[[int], None] = _cannot_withdraw

    @property
    def retiring(self) -> bool:
        """True if the instance is to be unloaded as soon as it is idle."""
        return self.on_idle is not _nothing

    @property
    def at_work(self) -> bool:
        """True if the instance owes responses, exports states or keeps sequences."""
        return self.batches.at_work or self.handing_over or self.keeps_sequences

    def send_batch(self, batch: Batch, now_ns: int) -> SentBatch:
        """Send a batch. A serialisation error is raised before anything is sent."""
        assert self.stream is not None, "a batch for an instance without a stream"
        number = self.batches.last_id + 1
        message = plain_batch_frame(number, batch, now_ns)
        if message is None:
            message = batch_message(number, batch, now_ns, inline=not self.shares)
        # Send now, so that the instance executes during the rest of this turn.
        self.stream.send(message, True)
        sent = SentBatch(
            number, batch, now_ns, self.revision, self.gpu_uuid, self.name, self.executor
        )
        self.batches.add_batch(sent)
        return sent

    def withdraw_waiting(self) -> None:
        """Ask the executor to give the waiting batch back."""
        waiting = self.batches.withdraw_waiting()
        if waiting is not None:
            self.request_withdrawal(waiting.id)

    def export_states(self, slot_numbers: Sequence[int]) -> None:
        """Ask for the states in these slots; the reply may leave out the last slots."""
        assert self.stream is not None, "an instance without a stream"
        message = pb.Batch(id=self.batches.begin_export(slot_numbers), exported_slots=slot_numbers)
        self.stream.send(message.SerializeToString())

    def read_reply(self, message: bytes) -> pb.Executed:
        """Parse a message of the instance; raise ProtocolError if it is malformed."""
        try:
            reply = pb.Executed.FromString(message)
        except DecodeError as error:
            raise ProtocolError("a message that cannot be read") from error
        if not self.shares:
            payloads = chain.from_iterable(response.payloads for response in reply.responses)
            if any(payload.HasField("shared_memory") for payload in payloads):
                # The segment may belong to another process, whose data the client would get.
                raise ProtocolError("a reference to memory that the executor does not share")
        return reply

    def read_responses(self, message: bytes) -> tuple[Executed, list[InferResponse]]:
        """Read a message about a batch and its responses; raise ProtocolError if malformed.

        If `partial` is set, the list is empty and the responses are only in the message.
        """
        responses, position = self.repeated_responses.read(message)
        times = read_executed_times(message, position) if position else None
        if times is not None:
            return times, responses
        reply = self.read_reply(message[position:] if position else message)
        if reply.partial:
            return (self.read_reply(message) if position else reply), []
        others = reply.responses
        if others:
            parsed = read_each_response(others[:])
            self.repeated_responses.learn(message, position, parsed[0])
            responses += parsed
        return reply, responses

    def send_control(self, batch: int, member: int, kind: pb.MemberControl.Kind) -> None:
        """Send a cancel, pause or resume for an executing request, if the model reads controls."""
        if self.accepts_controls and self.stream is not None:
            message = pb.Batch()
            message.controls.add(batch=batch, member=member, kind=kind)
            self.stream.send(message.SerializeToString())


def read_each_response(messages: Sequence[pb.InferResponse]) -> list[InferResponse]:
    """Read the responses in a message; raise ProtocolError if one is malformed."""
    try:
        return list(map(read_response, messages))
    except Exception as error:
        raise ProtocolError("a response that cannot be read") from error


def cancel_member(entry: Entry, instances: Iterable[RemoteInstance]) -> None:
    """Notify the instance that executes this entry that the client has cancelled the request."""
    for instance in instances:
        place = instance.batches.place_of(entry)
        if place is not None:
            instance.send_control(*place, pb.MemberControl.CANCEL)
            return


def _write_sequence(place: SequenceMember, member: pb.BatchMember) -> None:
    member.sequence_slot = place.slot_number
    if place.returns_state:
        member.returns_state = True
    restore = place.restore
    if restore is not None:
        member.restore.SetInParent()
        member.restore.state = restore.state
        for request in restore.requests:
            again = member.restore.requests.add(head=request.head)
            write_payloads(request.payloads, again.payloads)
            write_parameters(request.parameters or {}, again.parameters)


def batch_message(number: int, batch: Batch, now_ns: int, *, inline: bool = False) -> bytes:
    """Serialise a batch; inline: copy payloads out of shared memory."""
    message = pb.Batch(id=number)
    add = message.members.add
    for entry in batch.entries:
        request = entry.request
        member = add(head=request.head, id=request.id)
        payloads = inline_if_there(request.payloads) if inline else request.payloads
        write_payloads(payloads, member.payloads)
        if request.request_id:
            member.request_id = request.request_id
        if request.parameters:
            write_parameters(request.parameters, member.parameters)
        if request.deadline is not None:
            member.remaining_us = remaining_us(request.deadline, now_ns / 1e9)
        if request.timeout_us:
            member.timeout_us = request.timeout_us
        if entry.member is not None:
            _write_sequence(entry.member, member)
        if request.trace_context:
            trace = entry.trace
            if trace is None:
                member.trace_context = request.trace_context
            else:
                member.trace_context = trace.begin_attempt(now_ns)
                batch.traced = True
            if is_sampled(request.trace_context):
                message.traced = True
    return message.SerializeToString()
