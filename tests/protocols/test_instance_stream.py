"""The instance stream: batches, withdrawals, replies, broken streams and crash reports.

The scheduler's side is a ModelVersion with its InstanceBatches, the executor's is ReceivedBatches:
of arrays, one or several at a time, and of requests with deferred responses (OpenBatches). Between
them are the channels of an instance: batches and replies on its Execute stream, withdrawals
and events on its executor's Join stream.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from nereid.backends import Response
from nereid.core.errors import Internal, ProtocolError
from nereid.core.wire.messages import ErrorStatus, InferRequest, InferResponse
from nereid.model_config import parse_config
from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.batch_reader import parse_batch
from nereid_executor.batch.lifecycle.received_batches import (
    COMPLETE,
    EXECUTING,
    ReceivedBatch,
    ReceivedBatches,
)
from nereid_executor.batch.open_batches import OpenBatch, OpenBatches
from nereid_scheduler.batching.times.instance_times import InstanceTimes
from nereid_scheduler.core.instances.instance_batches import WAITING, SentBatch
from nereid_scheduler.core.instances.instance_places import Slot
from nereid_scheduler.core.instances.remote_instance import CrashReport, RemoteInstance
from nereid_scheduler.placement.executors.crash_recovery import CrashRecovery
from nereid_scheduler.placement.executors.sessions import PlacedInstance
from nereid_scheduler.versions.instance_pool import InstancePool
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.version_context import VersionContext
from tests.protocols.explorer import Action, Channel, World, explore, explore_random
from tests.protocols.virtual_loop import VirtualLoop
from tests.support.forms import pure_only
from tests.support.scheduler.samples import head_of, model_of
from tests.support.scheduler.world import TENSORS, joined, served_version

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from nereid.rpc import Status

pytestmark = pure_only

AT_MOST_ONCE = 'parameters { key: "at_most_once" value { string_value: "true" } }'
BATCHING = "max_batch_size: 2 dynamic_batching { }"
DECOUPLED = "model_transaction_policy { decoupled: true }"
REQUESTS = 6
_DRAFT = parse_config('name: "m"', model_name="m")
# By whether the model batches.
_HEADS = tuple(head_of([("I", "UINT8", shape)]) for shape in ([1], [1, 1]))
DIED = ErrorStatus(Internal.code, "the worker died", accepted=True)


class EagerTimes(InstanceTimes):
    """Of an instance that is always about to end; no real time makes its batches overdue."""

    def __init__(self) -> None:
        super().__init__()
        self.patience_ns = 1 << 60

    def record(self, execution_ns: int, total_ns: int | None) -> None:
        pass

    def may_send(self, elapsed_ns: int) -> bool:
        return True


class Numbered(NamedTuple):
    """A message on the wire, shown by its batch."""

    batch: int
    content: bytes = b""

    def __str__(self) -> str:
        return f"batch {self.batch}"


class ExecutorSide:
    """What an instance's thread and its executor's session do, for a model that executes arrays; a
    deliberate defect extends it.
    """

    depth = 1
    # Batches may lie in its socket.
    accepts_waiting = True

    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        self.received: ReceivedBatches[Any] = ReceivedBatches(self.depth)
        # In the socket.
        self.unread: deque[pb.Batch] = deque()
        self.last_begun = 0

    def on_batch(self, message: object) -> None:
        self.unread.append(pb.Batch.FromString(cast("Numbered", message).content))

    def on_withdraw(self, number: object) -> None:
        number = cast("int", number)
        if self.received.withdraw(number):
            self.wires.world.given_back.add((self.wires.number, number))
            self.wires.events.send(number)

    def actions(self) -> Iterable[Action]:
        number, oldest = self.wires.number, self.received.oldest()
        if oldest is not None:
            text = f"{number} responds to batch {oldest.id}"
            yield Action(f"thread {number}", text, partial(self.respond, oldest))
        if self.unread and self.received.may_begin:
            text = f"{number} reads batch {self.unread[0].id}"
            yield Action(f"thread {number}", text, self.read)

    def read(self) -> None:
        batch = self.unread.popleft()
        if self.received.read(batch.id):
            self.begin(batch)

    def begin(self, message: pb.Batch) -> None:
        self.note_begun(message)
        ids = [member.id for member in message.members]
        self.received.begin(ReceivedBatch(message.id, message.id, ids, 0))

    def note_begun(self, message: pb.Batch) -> None:
        world, number = self.wires.world, self.wires.number
        assert (number, message.id) not in world.given_back, f"{message.id} begun and given back"
        for member in message.members:
            world.runs[member.id] = world.runs.get(member.id, 0) + 1
        self.last_begun = message.id

    def respond(self, batch: ReceivedBatch) -> None:
        reply = pb.Executed(id=batch.id)
        for member in batch.ids:
            reply.responses.add(head=str(member).encode())
        self.send(reply)
        self.received.end(batch)

    def send(self, reply: pb.Executed) -> None:
        stream = self.wires.stream
        if stream is not None:
            stream.replies.send(Numbered(reply.id, reply.SerializeToString()))

    def executing(self) -> Iterable[int]:
        """The requests that it has begun and not responded to."""
        return [member for batch in self.received.begun() for member in batch.ids]

    def report_crash(self, stream: int) -> None:
        """Of the process that served this stream; the next one has begun nothing."""
        self.wires.events.send(CrashReport(self.last_begun, DIED, stream))
        self.last_begun = 0

    def on_broken(self) -> None:
        """Its stream has ended: what it executes has no response."""
        self.unread.clear()
        self.received.lose_all()

    def fingerprint(self) -> Hashable:
        received = self.received
        begun = tuple((each.id, each.state) for each in received.begun())
        unread = tuple(each.id for each in self.unread)
        withdrawn = tuple(sorted(received._withdrawn))
        return begun, unread, self.last_begun, received.last_read, withdrawn


class PipelinedSide(ExecutorSide):
    """A model that has several batches at a time."""

    depth = 2


class RequestSide(ExecutorSide):
    """A model that executes requests, which responds to each of them while it executes them or
    later. Batches are read as they come.
    """

    accepts_waiting = False

    def __init__(self, wires: Wires) -> None:
        super().__init__(wires)
        config = model_config_pb2.ModelConfig()
        config.CopyFrom(wires.world.config.proto)
        config.model_transaction_policy.decoupled = wires.world.config.decoupled
        self.open = OpenBatches(config, Path("1"), "m_0")
        self.received = self.open.received
        self.numbers = count(1)

    def on_batch(self, message: object) -> None:
        super().on_batch(message)
        self.read()

    def begin(self, message: pb.Batch) -> None:
        self.note_begun(message)
        frame = message.SerializeToString()
        self.open.begin_batch(parse_batch(frame), next(self.numbers), 0)

    def actions(self) -> Iterable[Action]:
        number = self.wires.number
        for batch in self.received.begun():
            if batch.state is EXECUTING:
                text = f"{number} has executed batch {batch.id}"
                yield Action(f"thread {number}", text, partial(self.advance, batch, executed=True))
            for member in batch.open_requests():
                text = f"{number} responds to {member} of batch {batch.id}"
                run = partial(self.respond_member, batch, member)
                yield Action(f"sender {number}", text, run)

    def respond_member(self, batch: OpenBatch, member: int) -> None:
        head = str(batch.ids[member]).encode()
        self.open.add_responses(batch, [Response(member, False, None, head)])
        self.advance(batch, executed=False)

    def advance(self, batch: OpenBatch, *, executed: bool) -> None:
        frame = batch.next_frame(self.received, 1, executed=executed)
        if frame is not None:
            self.send(pb.Executed.FromString(frame))
        if batch.state is COMPLETE:
            self.received.end(batch)

    def executing(self) -> Iterable[int]:
        return [number for batch in self.received.begun() for number in batch.ids]

    def fingerprint(self) -> Hashable:
        waiting = tuple(tuple(each.open_requests()) for each in self.received.begun())
        return super().fingerprint(), waiting


class StreamWire:
    """One Execute stream. Its last reply is followed by its end."""

    def __init__(self, wires: Wires, number: int) -> None:
        self.wires, self.number = wires, number
        name = f"stream {number} of {wires.number}"
        self.batches = Channel(f"batches on {name}", self._deliver_batch)
        self.replies = Channel(f"replies on {name}", self._deliver)
        self.replies.send("it opens")

    # ---- the scheduler's end

    def send(self, message: bytes, at_once: bool = False) -> None:
        batch = pb.Batch.FromString(message)
        if batch.members:
            self.batches.send(Numbered(batch.id, message))

    def finish(self) -> None:
        """Another one has been opened, or an older one was seen after it."""
        self.batches.send("it is finished")

    def fail(self, status: Status, message: str) -> None:
        raise AssertionError(status, message)

    def _deliver(self, message: object) -> None:
        if message == "it opens":
            self.wires.on_opened(self)
        elif message == "it has ended":
            self.wires.on_closed(self)
        elif self.wires.instance.stream is self:
            self.wires.on_reply(cast("Numbered", message).content)

    # ---- the executor's end

    def _deliver_batch(self, message: object) -> None:
        if message == "it is finished":
            self.wires.lose_stream()
        else:
            self.wires.side.on_batch(message)

    def end(self) -> None:
        self.batches.close()
        self.replies.send("it has ended")


class Wires:
    """One instance: its streams, and both ends of them."""

    def __init__(self, world: InstanceStream, number: int) -> None:
        self.world, self.number = world, number
        self.instance = RemoteInstance(number, f"m_{number}", "executor")
        world.version.pool.times.instances[self.instance] = EagerTimes()
        slot = Slot(self.instance.name, pb.Device.CPU, 0)
        self.placed = PlacedInstance(self.instance, world.served, world.session, slot)
        world.placed[number] = self.placed
        self.events = Channel(f"events from {number}", self._on_event)
        self.side = world.make_side(self)
        self.instance.accepts_waiting = self.side.accepts_waiting
        self.commands = Channel(f"withdrawals to {number}", self.side.on_withdraw)
        self.instance.request_withdrawal = self.commands.send
        self.streams: list[StreamWire] = []
        # The executor's; None: it has ended, and another may be opened.
        self.stream: StreamWire | None = None
        self.connect()
        for stream in self.streams:
            stream.replies.messages.clear()
            self.on_opened(stream)

    # ---- what the scheduler is told, as its loader passes it on

    def on_opened(self, stream: StreamWire) -> None:
        world, instance = self.world, self.instance
        old = instance.stream
        if isinstance(old, StreamWire):
            self.on_closed(old)
            old.finish()
        number = stream.number if world.reports else 0
        world.loop.settle(world.crash_recovery.on_reconnected, self.placed, number)
        instance.stream, instance.crash_stream = stream, number
        world.loop.settle(world.version.pool.roster.add, instance)

    def on_closed(self, stream: StreamWire) -> None:
        if self.instance.stream is stream:
            self.instance.stream = None
            recovery = self.world.crash_recovery
            self.world.loop.settle(recovery.on_stream_closed, self.placed, "it broke")

    def on_reply(self, content: bytes) -> None:
        self.world.loop.settle(self.world.version.pool.on_reply, self.instance, content)

    def _on_event(self, event: object) -> None:
        world = self.world
        if isinstance(event, CrashReport):
            world.loop.settle(world.crash_recovery.on_report, world.session, self.number, event)
        else:
            world.loop.settle(world.version.pool.batch_withdrawn, self.instance, event)

    # ---- what may happen

    def connect(self) -> None:
        self.stream = StreamWire(self, len(self.streams) + 1)
        self.streams.append(self.stream)

    def break_stream(self) -> None:
        """The instance's stream ends under it, and replies may be lost with it."""
        assert self.stream is not None
        self.world.breaks -= 1
        replies = self.stream.replies
        opens = "it opens" in replies.messages
        replies.messages.clear()
        if opens:
            replies.send("it opens")
        self.lose_stream()

    def lose_stream(self) -> None:
        """The instance sees that its stream has ended."""
        stream, self.stream = self.stream, None
        assert stream is not None
        stream.end()
        self.side.on_broken()

    def crash(self) -> None:
        """The instance's process dies, and its executor reports what its model had begun."""
        stream = self.stream
        assert stream is not None
        self.world.breaks -= 1
        self.world.may_fail.update(self.side.executing())
        # Executed, though its response may be lost.
        for message in stream.replies.messages:
            if isinstance(message, Numbered):
                sent = pb.Executed.FromString(message.content)
                self.world.may_fail.update(int(each.head or b"0") for each in sent.responses)
        self.side.report_crash(stream.number)
        self.lose_stream()

    def actions(self) -> Iterable[Action]:
        number, stream = self.number, self.stream
        if stream is None:
            yield Action(f"instance {number}", f"{number} connects", self.connect)
        yield from self.commands.arrivals()
        yield from self.events.arrivals()
        if stream is not None:
            yield from stream.batches.arrivals()
        yield from self.side.actions()
        for each in self.streams:
            yield from each.replies.arrivals()
        waiting = self.instance.batches.waiting
        if waiting is not None and waiting.state is WAITING:
            text = f"batch {waiting.id} at {number} is overdue"
            yield Action(f"timer {number}", text, self.instance.withdraw_waiting, disruption=True)
        if self.world.breaks and stream is not None:
            yield Action(
                f"break {number}", f"{number}'s stream breaks", self.break_stream, disruption=True
            )
            if self.world.reports:
                yield Action(f"break {number}", f"{number} crashes", self.crash, disruption=True)

    def fingerprint(self) -> Hashable:
        at = self.instance.batches
        at_scheduler = cast("StreamWire | None", self.instance.stream)
        channels = [each.replies for each in self.streams]
        channels += [self.commands, self.events]
        if self.stream is not None:
            channels.append(self.stream.batches)
        return (
            self.stream and self.stream.number,
            at_scheduler and at_scheduler.number,
            tuple(self.instance.crash_reports.items()),
            _show(at.first),
            _show(at.waiting),
            tuple((each.id, each.open_members) for each in at.responding.values()),
            self.side.fingerprint(),
            tuple(map(tuple, map(_texts, channels))),
        )


def _show(sent: SentBatch | None) -> Hashable:
    if sent is None:
        return None
    return sent.id, sent.state, tuple(entry.request.id for entry in sent.batch.entries)


def _texts(channel: Channel) -> Iterable[str]:
    return map(str, channel.messages)


class InstanceStream(World):
    """Some requests at once, to instances that execute one batch and may have one that waits."""

    def __init__(
        self,
        make_side: Callable[[Wires], ExecutorSide] = ExecutorSide,
        make_pool: Callable[..., InstancePool] = InstancePool,
        *,
        text: str = "",
        instances: int = 1,
        breaks: int = 0,
        reports: bool = False,
    ) -> None:
        self.loop = VirtualLoop("scheduler")
        self.make_side = make_side
        self.breaks = breaks
        # Whether its executor reports crashes.
        self.reports = reports
        self.responses: dict[int, InferResponse] = {}
        self.given_back: set[tuple[int, int]] = set()
        # By request: how often it was begun.
        self.runs: dict[int, int] = {}
        # Requests that were executing in a worker that died.
        self.may_fail: set[int] = set()
        self.config = model_of(text + TENSORS)
        self.loop.settle(self._begin, make_pool, instances)

    def _begin(self, make_pool: Callable[..., InstancePool], instances: int) -> None:
        context = VersionContext(QueueLimits(max_retries=3))
        self.version = ModelVersion(self.config, 1, context, make_pool)
        self.served = served_version(state="unknown", draft=_DRAFT, runtime=self.version)
        self.session, _ = joined("executor")
        self.placed: dict[int, PlacedInstance] = {}
        self.crash_recovery = CrashRecovery(self.placed)
        self.wires = [Wires(self, number) for number in range(1, instances + 1)]
        head = _HEADS[bool(self.config.max_batch_size)]
        for number in range(1, REQUESTS + 1):
            request = InferRequest(number, head, [b"x"], accepts_many=self.config.decoupled)
            self.version.submit(request, self._on_response)

    def _on_response(self, response: InferResponse) -> None:
        number = response.id
        if response.more:
            return
        if number in self.responses:
            self.twice = number
        self.responses[number] = response

    twice = 0

    def actions(self) -> Iterable[Action]:
        for each in self.wires:
            yield from each.actions()

    def check(self) -> None:
        assert not self.twice, f"request {self.twice} ended twice"
        for number, response in self.responses.items():
            if response.error is None:
                # A whole response's head is its request's number.
                wrong = bool(response.head) and int(response.head) != number
                assert not wrong, f"request {number} got the response of {response.head!r}"
            else:
                assert number in self.may_fail or self.config.at_most_once, response.error
        if self.config.at_most_once:
            assert all(runs == 1 for runs in self.runs.values()), "a request ran twice"

    def check_at_rest(self) -> None:
        assert len(self.responses) == REQUESTS, f"only {sorted(self.responses)} ended"
        assert self.version.dispatcher.pending == 0
        for each in self.wires:
            assert not each.instance.at_work
        assert self.version.dispatcher.instances == (len(self.wires), len(self.wires))

    def fingerprint(self) -> Hashable:
        ended = tuple(sorted(self.responses))
        runs = tuple(sorted(self.runs.items())) if self.config.at_most_once else ()
        return ended, runs, self.breaks, tuple(each.fingerprint() for each in self.wires)


WORLDS: dict[str, Callable[[], InstanceStream]] = {
    "one instance": partial(InstanceStream, breaks=1),
    "two instances": partial(InstanceStream, instances=2),
    "batches": partial(InstanceStream, text=BATCHING, breaks=1),
    "at most once": partial(InstanceStream, text=AT_MOST_ONCE, breaks=1),
    "crash reports": partial(InstanceStream, breaks=2, reports=True),
    "crash reports, at most once": partial(
        InstanceStream, text=AT_MOST_ONCE, breaks=2, reports=True
    ),
    "decoupled": partial(InstanceStream, text=DECOUPLED, breaks=1),
    "pipelined": partial(InstanceStream, PipelinedSide, breaks=1),
    "pipelined, crash reports": partial(InstanceStream, PipelinedSide, breaks=2, reports=True),
    "requests, deferred": partial(InstanceStream, RequestSide, text=BATCHING, breaks=1),
    "requests, deferred, crash reports": partial(
        InstanceStream, RequestSide, text=BATCHING, breaks=2, reports=True
    ),
    "requests, decoupled": partial(InstanceStream, RequestSide, text=DECOUPLED, breaks=1),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_every_interleaving_up_to_a_bound(world: Callable[[], InstanceStream]) -> None:
    found = explore(world, reorderings=3, limit=1500)
    assert found.failure is None, str(found.failure)
    assert found.complete or found.runs == 1500


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_random_interleavings(world: Callable[[], InstanceStream]) -> None:
    found = explore_random(world, seeds=range(150))
    assert found.failure is None, str(found.failure)


# ---- deliberate defects


class RemembersOneWithdrawal(ReceivedBatches[Any]):
    """An earlier withdrawn batch may still lie unread."""

    def withdraw(self, number: int) -> bool:
        self._withdrawn.clear()
        return super().withdraw(number)


class ForgetfulSide(ExecutorSide):
    def __init__(self, wires: Wires) -> None:
        super().__init__(wires)
        self.received = RemembersOneWithdrawal()


class GivesBackWhatHasBegun(ExecutorSide):
    """No fence between the thread that begins and the loop that withdraws."""

    def on_withdraw(self, number: object) -> None:
        self.wires.events.send(number)


class RespondsTwice(ExecutorSide):
    def send(self, reply: pb.Executed) -> None:
        super().send(reply)
        super().send(reply)


class RespondsToTheNextBatchFirst(ExecutorSide):
    """Wrong order: a pipeline that completes its batches as they come."""

    held: pb.Executed | None = None

    def send(self, reply: pb.Executed) -> None:
        if self.held is None and self.unread:
            self.held = reply
            return
        super().send(reply)
        if self.held is not None:
            held, self.held = self.held, None
            super().send(held)


class SkipsWithoutReport(ExecutorSide):
    """A lost wake-up: a batch that was given back is reported to nobody."""

    def on_withdraw(self, number: object) -> None:
        self.received.withdraw(cast("int", number))


class CompletesInAnyOrder(PipelinedSide):
    """Responds to the batch that it began last."""

    def respond(self, batch: ReceivedBatch) -> None:
        super().respond([*self.received.executing.values()][-1])


class ForgetsDeferredOnes(RequestSide):
    """What waits for responses when the next batch begins never gets them."""

    def begin(self, message: pb.Batch) -> None:
        self.received.deferred.clear()
        super().begin(message)


class RespondsByPosition(RequestSide):
    """The responses in a partial reply are to the first members."""

    def send(self, reply: pb.Executed) -> None:
        for index, each in enumerate(reply.responses):
            each.id = index
        super().send(reply)


class ForgetsAMember(ExecutorSide):
    def send(self, reply: pb.Executed) -> None:
        if len(reply.responses) > 1:
            del reply.responses[-1]
        super().send(reply)


class RunsOnAfterABreak(ExecutorSide):
    """A response over the next stream, to a batch that runs elsewhere by then."""

    def on_broken(self) -> None:
        self.unread.clear()


class ForgetsWhichStream(ExecutorSide):
    """A crash report without its stream's number counts for the one that is open."""

    def report_crash(self, stream: int) -> None:
        super().report_crash(0)


class RequeuesWithoutFence(InstancePool):
    """Takes a batch back as soon as it asks for it, not when the instance gives it back."""

    def _end_first(self, instance: RemoteInstance, now_ns: int) -> None:
        waiting = instance.batches.waiting
        if waiting is not None and waiting.state is not WAITING:
            self.batch_withdrawn(instance, waiting.id)
        super()._end_first(instance, now_ns)


class ReleasesTwice(InstancePool):
    """A lost instance is free again, and is sent a batch without a stream."""

    def lose_instance(self, instance: RemoteInstance, cause: str, *, begun: bool = True) -> None:
        super().lose_instance(instance, cause, begun=begun)
        self._router.add_instance(instance)


class DropsTheWaitingBatch(InstancePool):
    """Forgets the batch that waited at a lost instance."""

    def lose_instance(self, instance: RemoteInstance, cause: str, *, begun: bool = True) -> None:
        instance.batches.waiting = None
        super().lose_instance(instance, cause, begun=begun)


@pytest.mark.parametrize(
    "world",
    [
        partial(InstanceStream, ForgetfulSide),
        partial(InstanceStream, GivesBackWhatHasBegun),
        partial(InstanceStream, RespondsTwice),
        partial(InstanceStream, RespondsToTheNextBatchFirst),
        partial(InstanceStream, SkipsWithoutReport),
        partial(InstanceStream, CompletesInAnyOrder),
        partial(InstanceStream, ForgetsDeferredOnes),
        partial(InstanceStream, RespondsByPosition, text=BATCHING),
        partial(InstanceStream, ForgetsAMember, text=BATCHING),
        partial(InstanceStream, RunsOnAfterABreak, breaks=1),
        partial(InstanceStream, ForgetsWhichStream, text=AT_MOST_ONCE, breaks=2, reports=True),
        partial(InstanceStream, ExecutorSide, RequeuesWithoutFence),
        partial(InstanceStream, ExecutorSide, ReleasesTwice, breaks=1),
        partial(InstanceStream, ExecutorSide, DropsTheWaitingBatch, breaks=1),
    ],
    ids=lambda world: next(each.__name__ for each in world.args[::-1]),
)
def test_deliberate_defects_are_found(world: Callable[[], InstanceStream]) -> None:
    found = explore(world, reorderings=4, limit=4000)
    assert found.failure is not None
    assert isinstance(found.failure.error, AssertionError | ProtocolError), found.failure


def test_an_instance_that_falls_behind_is_shown_by_the_shortest_story() -> None:
    found = explore(partial(InstanceStream, ForgetfulSide), reorderings=6)
    assert found.failure is not None
    assert "begun and given back" in str(found.failure)
    # Two batches withdrawn while the first of them lies unread.
    assert len([step for step in found.failure.story if "is overdue" in step]) == 2
