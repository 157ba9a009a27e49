"""The instance stream: batches, withdrawals, replies, broken streams and crash reports.

The scheduler's side is a ModelVersion with its InstanceBatches, the executor's is BegunBatches.
Between them are the channels of an instance: batches and replies on its Execute stream, withdrawals
and events on its executor's Join stream.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import pytest

from nereid.core.errors import Internal, ProtocolError
from nereid.core.messages import InferRequest, InferResponse
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.batch.begun_batches import BegunBatches
from nereid.services.scheduler.executors.instance import Instance
from nereid.services.scheduler.executors.instance_batches import WAITING, SentBatch
from nereid.services.scheduler.executors.pace import Pace
from nereid.services.scheduler.models.model_version import ModelVersion
from nereid.services.scheduler.models.queue_limits import QueueLimits
from nereid.services.scheduler.models.version_context import VersionContext
from tests.protocols.explorer import Action, Channel, World, explore, explore_random
from tests.protocols.virtual_loop import VirtualLoop
from tests.support.scheduler.samples import model_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from nereid.rpc import Status

TENSORS = """
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
"""
AT_MOST_ONCE = 'parameters { key: "at_most_once" value { string_value: "true" } }'
DECOUPLED = "model_transaction_policy { decoupled: true }"
REQUESTS = 6


class EagerPace(Pace):
    """Of an instance that is always about to end; no real time makes its batches overdue."""

    def __init__(self) -> None:
        super().__init__()
        self.patience_ns = 1 << 60

    def record_batch(self, execution_ns: int, total_ns: int | None) -> None:
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
    """What an instance's thread and its executor's session do; a deliberate defect extends it."""

    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        self.batches = BegunBatches()
        # In the socket.
        self.unread: deque[pb.Batch] = deque()
        self.executing: pb.Batch | None = None

    def on_batch(self, message: object) -> None:
        self.unread.append(pb.Batch.FromString(cast("Numbered", message).content))

    def on_withdraw(self, number: object) -> None:
        number = cast("int", number)
        if self.batches.withdraw(number):
            self.wires.world.given_back.add((self.wires.number, number))
            self.wires.events.send(number)

    def read(self) -> None:
        batch = self.unread.popleft()
        if self.batches.begin(batch.id):
            self.begin(batch)

    def begin(self, batch: pb.Batch) -> None:
        world, number = self.wires.world, self.wires.number
        assert (number, batch.id) not in world.given_back, f"{batch.id} executed and given back"
        for member in batch.members:
            world.runs[member.id] = world.runs.get(member.id, 0) + 1
        self.executing = batch

    def respond(self) -> None:
        batch, self.executing = self.executing, None
        assert batch is not None
        reply = pb.Executed(id=batch.id)
        for member in batch.members:
            reply.responses.add(head=str(member.id).encode())
        self.send(reply)

    def send(self, reply: pb.Executed) -> None:
        self.wires.replies.send(Numbered(reply.id, reply.SerializeToString()))

    def on_broken(self) -> None:
        """Its stream has ended: what it executes has no response."""
        self.unread.clear()
        self.executing = None


class Wires:
    """One instance: its streams, and both ends of them."""

    def __init__(self, world: InstanceStream, number: int) -> None:
        self.world, self.number = world, number
        self.instance = Instance(number, f"m_{number}", "executor")
        self.instance.accepts_waiting = True
        self.instance.pace = EagerPace()
        self.events = Channel(f"events from {number}", self._on_withdrawn)
        self.side = world.make_side(self)
        self.commands = Channel(f"withdrawals to {number}", self.side.on_withdraw)
        self.instance.request_withdrawal = self.commands.send
        self._open()

    def _open(self) -> None:
        number, side = self.number, self.side
        self.batches = Channel(f"batches to {number}", side.on_batch)
        self.replies = Channel(f"replies from {number}", self._on_reply)
        self.instance.stream = self

    # ---- the scheduler's end of its stream

    def send(self, message: bytes) -> None:
        batch = pb.Batch.FromString(message)
        if batch.members:
            self.batches.send(Numbered(batch.id, message))

    def send_now(self, message: bytes) -> None:
        self.send(message)

    def finish(self) -> None:
        """It is broken already."""

    def fail(self, status: Status, message: str) -> None:
        raise AssertionError(status, message)

    def _on_reply(self, message: object) -> None:
        content = cast("Numbered", message).content
        self.world.loop.settle(self.world.version.on_reply, self.instance, content)

    def _on_withdrawn(self, number: object) -> None:
        self.world.loop.settle(self.world.version.batch_withdrawn, self.instance, number)

    # ---- what may happen

    def break_stream(self) -> None:
        """Both ends see that their stream has ended; the instance may connect again."""
        self.world.breaks -= 1
        self.batches.close()
        self.replies.close()
        self.side.on_broken()
        self.instance.stream = None
        self.world.loop.settle(self.world.version.lose_instance, self.instance, "it broke")

    def crash(self) -> None:
        """As break_stream(), and its executor reports what the model had begun."""
        executing = self.side.executing
        begun = 0 if executing is None else executing.id
        for member in () if executing is None else executing.members:
            self.world.may_fail.add(member.id)
        # Executed, though its response is lost.
        for message in self.replies.messages:
            begun = max(begun, cast("Numbered", message).batch)
            sent = pb.Executed.FromString(cast("Numbered", message).content)
            self.world.may_fail.update(int(each.head or b"0") for each in sent.responses)
        died = Internal("the worker died")
        self.world.loop.settle(self.world.version.fail_begun, self.instance, begun, died)
        self.break_stream()

    def connect(self) -> None:
        self._open()
        self.world.loop.settle(self.world.version.add_instance, self.instance)

    def actions(self) -> Iterable[Action]:
        number, side = self.number, self.side
        if self.instance.stream is None:
            yield Action(f"instance {number}", f"{number} connects", self.connect)
            yield from self.commands.arrivals()
            yield from self.events.arrivals()
            return
        yield from self.commands.arrivals()
        yield from self.events.arrivals()
        yield from self.batches.arrivals()
        if side.executing is not None:
            text = f"{number} responds to batch {side.executing.id}"
            yield Action(f"thread {number}", text, side.respond)
        elif side.unread:
            yield Action(f"thread {number}", f"{number} reads batch {side.unread[0].id}", side.read)
        yield from self.replies.arrivals()
        waiting = self.instance.batches.waiting
        if waiting is not None and waiting.state is WAITING:
            text = f"batch {waiting.id} at {number} is overdue"
            yield Action(f"timer {number}", text, self.instance.withdraw_waiting, disruption=True)
        if self.world.breaks:
            yield Action(
                f"break {number}", f"{number}'s stream breaks", self.break_stream, disruption=True
            )
            yield Action(f"break {number}", f"{number} crashes", self.crash, disruption=True)

    def fingerprint(self) -> Hashable:
        side, at = self.side, self.instance.batches
        executing = side.executing and side.executing.id
        withdrawn = tuple(sorted(side.batches._withdrawn))
        return (
            self.instance.stream is None,
            _show(at.first),
            _show(at.waiting),
            executing,
            tuple(each.id for each in side.unread),
            (side.batches._begun, withdrawn),
            tuple(
                map(tuple, map(_texts, (self.batches, self.replies, self.commands, self.events)))
            ),
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
        make_version: Callable[..., ModelVersion] = ModelVersion,
        *,
        text: str = "",
        instances: int = 1,
        breaks: int = 0,
    ) -> None:
        self.loop = VirtualLoop("scheduler")
        self.make_side = make_side
        self.breaks = breaks
        self.responses: dict[int, InferResponse] = {}
        self.given_back: set[tuple[int, int]] = set()
        # By request: how often it was begun.
        self.runs: dict[int, int] = {}
        # Requests that were executing in a worker that died.
        self.may_fail: set[int] = set()
        self.config = model_of(text + TENSORS)
        self.loop.settle(self._begin, make_version, instances)

    def _begin(self, make_version: Callable[..., ModelVersion], instances: int) -> None:
        context = VersionContext(QueueLimits(max_retries=3))
        self.version = make_version(self.config, 1, context)
        self.wires = [Wires(self, number) for number in range(1, instances + 1)]
        for each in self.wires:
            self.version.add_instance(each.instance)
        head = kserve_pb2.ModelInferRequest(model_name="m")
        shape = [1, 1] if self.config.max_batch_size else [1]
        head.inputs.add(name="I", datatype="UINT8", shape=shape)
        for number in range(1, REQUESTS + 1):
            request = InferRequest(
                number, head.SerializeToString(), [b"x"], accepts_many=self.config.decoupled
            )
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
        assert self.version.pending == 0
        for each in self.wires:
            assert not each.instance.at_work
        assert self.version.instances == (len(self.wires), len(self.wires))

    def fingerprint(self) -> Hashable:
        ended = tuple(sorted(self.responses))
        runs = tuple(sorted(self.runs.items())) if self.config.at_most_once else ()
        return ended, runs, self.breaks, tuple(each.fingerprint() for each in self.wires)


WORLDS = {
    "one instance": partial(InstanceStream, breaks=1),
    "two instances": partial(InstanceStream, instances=2),
    "batches": partial(InstanceStream, text="max_batch_size: 2 dynamic_batching { }", breaks=1),
    "at most once": partial(InstanceStream, text=AT_MOST_ONCE, breaks=1),
    "decoupled": partial(InstanceStream, text=DECOUPLED, breaks=1),
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


class RemembersOneWithdrawal(BegunBatches):
    """An earlier withdrawn batch may still lie unread."""

    def withdraw(self, batch: int) -> bool:
        self._withdrawn.clear()
        return super().withdraw(batch)


class ForgetfulSide(ExecutorSide):
    def __init__(self, wires: Wires) -> None:
        super().__init__(wires)
        self.batches = RemembersOneWithdrawal()


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
        self.batches.withdraw(cast("int", number))


class ForgetsAMember(ExecutorSide):
    def send(self, reply: pb.Executed) -> None:
        if len(reply.responses) > 1:
            del reply.responses[-1]
        super().send(reply)


class RunsOnAfterABreak(ExecutorSide):
    """A response over the next stream, to a batch that runs elsewhere by then."""

    def on_broken(self) -> None:
        self.unread.clear()


class RequeuesWithoutFence(ModelVersion):
    """Takes a batch back as soon as it asks for it, not when the instance gives it back."""

    def end_first(self, instance: Instance, now_ns: int) -> None:
        waiting = instance.batches.waiting
        if waiting is not None and waiting.state is not WAITING:
            self.batch_withdrawn(instance, waiting.id)
        super().end_first(instance, now_ns)


class ReleasesTwice(ModelVersion):
    """A lost instance is free again, and is sent a batch without a stream."""

    def lose_instance(self, instance: Instance, cause: str, *, begun: bool = True) -> None:
        super().lose_instance(instance, cause, begun=begun)
        self._router.add_instance(instance)


class DropsTheWaitingBatch(ModelVersion):
    """Forgets the batch that waited at a lost instance."""

    def lose_instance(self, instance: Instance, cause: str, *, begun: bool = True) -> None:
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
        partial(InstanceStream, ForgetsAMember, text="max_batch_size: 2 dynamic_batching { }"),
        partial(InstanceStream, RunsOnAfterABreak, breaks=1),
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
    assert "executed and given back" in str(found.failure)
    # Two batches withdrawn while the first of them lies unread.
    assert len([step for step in found.failure.story if "is overdue" in step]) == 2
