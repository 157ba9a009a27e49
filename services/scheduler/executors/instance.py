"""One model instance as the scheduler sees it: a stream that takes one batch at a time.

Writes batches and reads what came of them; decides nothing about either. Knows no queue.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from nereid.core.codecs import remaining_us, write_parameters, write_payloads
from nereid.observability.tracing import is_sampled
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.observability.execution import Execution
from nereid.services.scheduler.requests.deferred_responses import check_places
from nereid.services.scheduler.requests.shared_tensors import inline_if_there

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.services.scheduler.executors.crash_recovery import Fate
    from nereid.services.scheduler.models.readiness import Question
    from nereid.services.scheduler.requests.deferred_responses import Late
    from nereid.services.scheduler.requests.entry import Batch, Entry


class BatchStream(Protocol):
    """The scheduler's end of an Execute stream; nereid.rpc.Call is one."""

    def send(self, message: bytes) -> None:
        """Write a message; nothing happens once the stream is broken."""

    def finish(self) -> None:
        """End the stream."""


def _nothing() -> None:
    """It goes on as before."""


@dataclass(slots=True, eq=False)
class Running:
    """A batch that an instance has and has not answered."""

    id: int
    batch: Batch
    started_ns: int
    # The instance's.
    revision: bytes = b""
    gpu_uuid: str = ""

    def read(self, message: bytes) -> pb.Executed:
        """What the instance says came of it. Raises whatever shows that this makes no sense."""
        reply = pb.Executed.FromString(message)
        if reply.id != self.id:
            raise ValueError(f"batch {self.id} was under way, batch {reply.id} was answered")
        members = len(self.batch.entries)
        if reply.partial:
            check_places(reply, range(members))
        elif len(reply.responses) != members:
            raise ValueError(f"{len(reply.responses)} answers to {members} requests")
        return reply

    def execution(self, reply: pb.Executed, finished_ns: int) -> Execution:
        """How it went, as the instance tells."""
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


@dataclass(slots=True, eq=False)
class Instance:
    """Told to load: no stream. Ready: a stream. Its model's owner alone touches `running`."""

    id: int
    name: str
    executor: str
    stream: BatchStream | None = None
    running: Running | None = None
    batches: int = 0
    # Which state of the model it was told to load; empty: nobody needs to know.
    revision: bytes = b""
    # Of the GPU that it is on, if it is on one.
    gpu_uuid: str = ""
    # What is to be done when a batch is answered; something for the last one.
    on_idle: Callable[[], None] = _nothing
    # Requests that still await answers from it, though it may have its next batch: a decoupled
    # model's, and of others those of batches that it has executed, by the batch's number.
    open_members: int = 0
    late: dict[int, Late] = field(default_factory=dict)
    # It can be told what has become of requests that it executes.
    heeds_controls: bool = False
    # Its executor tells what becomes of its batch if its stream breaks.
    vouched: bool = False
    # What it told before the stream's end was seen.
    fate: Fate | None = None
    # Its executor can open the memory that requests lie in.
    shares: bool = True
    # Its model can be asked whether it is ready, and what it was asked last.
    tells_ready: bool = False
    question: Question | None = None

    @property
    def going(self) -> bool:
        """Whether it goes as soon as it has nothing to do."""
        return self.on_idle is not _nothing

    @property
    def at_work(self) -> bool:
        """Whether anybody awaits anything from it."""
        return self.running is not None or self.open_members > 0

    def execute(self, batch: Batch, now_ns: int) -> None:
        """Send a batch on its way. Raises whatever serialisation raises; nothing is sent then."""
        assert self.stream is not None, "a batch for an instance without a stream"
        message = batch_message(self.batches + 1, batch, now_ns, inline=not self.shares)
        self.stream.send(message)
        self.batches += 1
        self.running = Running(self.batches, batch, now_ns, self.revision, self.gpu_uuid)


def control_message(batch: int, member: int, kind: pb.MemberControl.Kind) -> bytes:
    """What tells an instance what has become of a request that it was given."""
    message = pb.Batch()
    message.controls.add(batch=batch, member=member, kind=kind)
    return message.SerializeToString()


def withdraw(entry: Entry, instances: Iterable[Instance]) -> None:
    """Nobody waits for this entry any more: let the model that executes it know, if it listens."""
    for instance in instances:
        given = [late.running for late in instance.late.values()]
        if instance.running is not None:
            given.append(instance.running)
        running = next((each for each in given if entry in each.batch.entries), None)
        if running is not None:
            if instance.heeds_controls and instance.stream is not None:
                place = running.batch.entries.index(entry)
                cancel = pb.MemberControl.CANCEL
                instance.stream.send(control_message(running.id, place, cancel))
            return


def batch_message(number: int, batch: Batch, now_ns: int, *, inline: bool = False) -> bytes:
    """A batch as it travels: its members' heads and payloads as the clients sent them.

    inline: with all bytes in it.
    """
    message = pb.Batch(id=number)
    add = message.members.add
    for entry in batch.entries:
        request = entry.request
        member = add(head=request.head)
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
