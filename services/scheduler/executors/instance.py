"""One model instance as the scheduler sees it: a stream that runs one batch at a time, in order.

Writes batches and reads their outcome; decides nothing about either. Knows no queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nereid.core.codecs import read_response, remaining_us, write_parameters, write_payloads
from nereid.core.messages import ErrorStatus
from nereid.observability.tracing import is_sampled
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.executors.batch_frame import plain_batch_frame
from nereid.services.scheduler.executors.executed_frame import RepeatedResponses
from nereid.services.scheduler.executors.pace import Pace
from nereid.services.scheduler.observability.execution import Execution
from nereid.services.scheduler.requests.entry import Batch
from nereid.services.scheduler.requests.segment_owners import inline_if_there

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from nereid.core.messages import InferResponse
    from nereid.services.scheduler.batching.sequences.sequence import SequenceMember
    from nereid.services.scheduler.requests.entry import Entry


class BatchStream(Protocol):
    """The scheduler's end of an Execute stream; nereid.rpc.Call is one."""

    def send(self, message: bytes) -> None:
        """Write a message; nothing happens once the stream is broken."""

    def send_now(self, message: bytes) -> None:
        """Likewise, and before anything else is done."""

    def finish(self) -> None:
        """End the stream."""


@dataclass(slots=True, eq=False)
class ReadinessQuestion:
    """A query to an instance. A new stream needs a new one: the model's process may be another."""

    number: int
    stream: BatchStream
    response: asyncio.Future[bool]
    # The model is being asked.
    asked: bool = False


def _nothing() -> None:
    """The instance goes on as before."""


def _cannot_withdraw(batch: int) -> None:
    """Its executor takes no such request."""


class Running:
    """A batch that an instance executes, or that waits there for the one before it."""

    __slots__ = (
        "batch",
        "gpu_uuid",
        "id",
        "revision",
        "started_ns",
        "waited_since_ns",
        "withdrawing",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - a record
        self,
        id: int,  # noqa: A002 - by what it is called
        batch: Batch,
        started_ns: int,
        revision: bytes = b"",
        gpu_uuid: str = "",
        waited_since_ns: int = 0,
        withdrawing: bool = False,
    ) -> None:
        self.id = id
        self.batch = batch
        # When the instance was sent it; or began it, if it has waited.
        self.started_ns = started_ns
        # The instance's.
        self.revision = revision
        self.gpu_uuid = gpu_uuid
        # When it was sent, if it has waited; 0: the instance was free.
        self.waited_since_ns = waited_since_ns
        # The instance has been asked to give it back.
        self.withdrawing = withdrawing

    def check_reply(self, reply: pb.Executed, responses: int) -> None:
        """Raise if it is not the outcome of this batch. responses: how many it has."""
        if reply.id != self.id:
            raise ValueError(f"a response to batch {reply.id} while executing batch {self.id}")
        members = len(self.batch.entries)
        if reply.partial:
            check_members(reply, range(members))
        elif responses != members:
            raise ValueError(f"{responses} responses to {members} requests")

    def execution(self, reply: pb.Executed, finished_ns: int) -> Execution:
        """The times that the instance reports, and the scheduler's own."""
        if self.waited_since_ns:
            # The response before it may have been read long after the instance had sent it.
            computed_ns = reply.compute_input_ns + reply.compute_infer_ns + reply.compute_output_ns
            began_ns = min(self.started_ns, finished_ns - computed_ns)
            self.started_ns = max(self.waited_since_ns, began_ns)
        return Execution(
            self.started_ns,
            finished_ns,
            time.time_ns() // 1_000_000,
            reply.compute_input_ns,
            reply.compute_infer_ns,
            reply.compute_output_ns,
            self.revision,
            self.gpu_uuid,
        )


class DeferredBatch(NamedTuple):
    """An executed batch, and its members without a response, by their index in it."""

    running: Running
    execution: Execution
    waiting: dict[int, Entry]


class CrashReport(NamedTuple):
    """What an executor reports about a lost instance."""

    # The last batch that its model had begun to execute.
    begun: int
    error_status: ErrorStatus


@dataclass(slots=True, eq=False)
class Instance:
    """Loading: no stream. Ready: a stream. Only its model's version touches `running` and
    `waiting`.
    """

    id: int
    name: str
    executor: str
    stream: BatchStream | None = None
    running: Running | None = None
    # The batch that it was sent as well, and executes next; only while another is running.
    waiting: Running | None = None
    batches: int = 0
    # The state of the model's files that it loads; empty without a response cache.
    revision: bytes = b""
    # Of the GPU that it is on, if any.
    gpu_uuid: str = ""
    # Called when it has no work left; unloads an instance that is to go.
    on_idle: Callable[[], None] = _nothing
    # Entries without their last response though it may have its next batch: a decoupled model's,
    # and those of the deferred batches, by the batch's number.
    open_members: int = 0
    deferred: dict[int, DeferredBatch] = field(default_factory=dict)
    # Its model reads MemberControl messages: cancellations and flow control.
    accepts_controls: bool = False
    # Its executor sends a CrashReport when its stream breaks.
    reports_crashes: bool = False
    # Came before the stream's end was seen.
    crash_report: CrashReport | None = None
    # Its executor can open the memory that requests lie in, and may respond in its own.
    shares: bool = True
    # Its model can be asked whether it is ready, and the last such query.
    reports_readiness: bool = False
    question: ReadinessQuestion | None = None
    # It can be asked for its sequences' states, and is being asked for them before it is unloaded.
    has_states: bool = False
    handing_over: bool = False
    # It is unloaded when the sequences that it has are over.
    keeps_sequences: bool = False
    # A batch may wait there, and how long its batches take.
    accepts_waiting: bool = False
    pace: Pace = field(default_factory=Pace)
    # What is known of its responses.
    repeated_responses: RepeatedResponses = field(default_factory=RepeatedResponses)
    # Asks its executor to give a batch back that has not begun; with the batch's number.
    request_withdrawal: Callable[[int], None] = _cannot_withdraw

    @property
    def retiring(self) -> bool:
        """Whether it is unloaded as soon as it is idle."""
        return self.on_idle is not _nothing

    @property
    def at_work(self) -> bool:
        """Whether it still has to respond to anything."""
        return (
            self.running is not None
            or self.open_members > 0
            or self.handing_over
            or self.keeps_sequences
        )

    def execute(self, batch: Batch, now_ns: int) -> None:
        """Send a batch. A serialisation error is raised before anything is sent."""
        self.running = self._send(batch, now_ns)

    def execute_next(self, batch: Batch, now_ns: int) -> None:
        """Like execute(), while another batch is running: this one waits until that has ended."""
        self.waiting = waiting = self._send(batch, now_ns)
        waiting.waited_since_ns = now_ns

    def begin_waiting(self, now_ns: int) -> Running | None:
        """The batch before it has ended: what has waited is running now."""
        self.running, self.waiting = self.waiting, None
        if self.running is not None:
            self.running.started_ns = now_ns
        return self.running

    def withdraw_waiting(self) -> None:
        """Ask for the waiting batch to be given back."""
        waiting = self.waiting
        if waiting is not None and not waiting.withdrawing:
            waiting.withdrawing = True
            self.request_withdrawal(waiting.id)

    def _send(self, batch: Batch, now_ns: int) -> Running:
        assert self.stream is not None, "a batch for an instance without a stream"
        number = self.batches + 1
        message = plain_batch_frame(number, batch, now_ns)
        if message is None:
            message = batch_message(number, batch, now_ns, inline=not self.shares)
        # What is left of this turn, mostly responses to other requests, is done meanwhile.
        self.stream.send_now(message)
        self.batches += 1
        return Running(self.batches, batch, now_ns, self.revision, self.gpu_uuid)

    def export_states(self, slot_numbers: Sequence[int]) -> None:
        """Ask for the states of these slots' sequences; the reply may lack the last ones."""
        assert self.stream is not None, "an instance without a stream"
        self.batches += 1
        message = pb.Batch(id=self.batches, exported_slots=slot_numbers)
        self.stream.send(message.SerializeToString())

    def read_executed(self, message: bytes) -> pb.Executed:
        """A message from it. Raises on a malformed one."""
        executed = pb.Executed.FromString(message)
        if not self.shares:
            payloads = chain.from_iterable(each.payloads for each in executed.responses)
            if any(each.HasField("shared_memory") for each in payloads):
                # Of some other process of this host: we would read it for the client.
                raise ValueError("a reference to memory that the executor does not share")
        return executed

    def read_outcome(self, message: bytes) -> tuple[pb.Executed, list[InferResponse]]:
        """A message from it about a batch, and the responses in it; only if there are further ones
        to come (partial) they are in the message alone. Raises on a malformed one.
        """
        responses, position = self.repeated_responses.read(message)
        executed = self.read_executed(message[position:] if position else message)
        if executed.partial:
            return (self.read_executed(message) if position else executed), []
        others = executed.responses
        if others:
            parsed = list(map(read_response, others[:]))
            self.repeated_responses.learn(message, position, parsed[0])
            responses += parsed
        return executed, responses

    def send_control(self, batch: int, member: int, kind: pb.MemberControl.Kind) -> None:
        """Report what became of a request that it executes, if its model reads such messages."""
        if self.accepts_controls and self.stream is not None:
            message = pb.Batch()
            message.controls.add(batch=batch, member=member, kind=kind)
            self.stream.send(message.SerializeToString())


def check_members(reply: pb.Executed, waiting: Container[int]) -> None:
    """Raise ValueError unless each response is to another member that waits for one."""
    members = [response.id for response in reply.responses]
    if len({*members}) < len(members) or any(member not in waiting for member in members):
        raise ValueError(f"responses to members {members}, some of which wait for none")


def cancel_member(entry: Entry, instances: Iterable[Instance]) -> None:
    """Notify the instance that executes this entry that its client has cancelled."""
    for instance in instances:
        batches = [deferred.running for deferred in instance.deferred.values()]
        if instance.running is not None:
            batches.append(instance.running)
        for running in batches:
            if entry in running.batch.entries:
                member = running.batch.entries.index(entry)
                instance.send_control(running.id, member, pb.MemberControl.CANCEL)
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
    """A batch on the wire: its members' heads and payloads as the clients sent them.

    inline: with the bytes of payloads in shared memory.
    """
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
