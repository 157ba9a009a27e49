"""The protocol of an instance's stream: batches, withdrawals, broken streams."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from nereid.core.messages import InferRequest, InferResponse
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.batch.begun_batches import BegunBatches
from nereid.services.scheduler.executors.instance import Instance
from nereid.services.scheduler.executors.pace import Pace
from nereid.services.scheduler.models.model_version import ModelVersion
from nereid.services.scheduler.models.queue_limits import QueueLimits
from nereid.services.scheduler.models.version_context import VersionContext
from tests.protocols.explorer import Action, Channel, World, explore, explore_random
from tests.protocols.turn_loop import TurnLoop
from tests.support.scheduler.samples import model_of

if TYPE_CHECKING:
    from collections.abc import Iterable

TENSORS = """
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
"""


class _EagerPace(Pace):
    def __init__(self) -> None:
        super().__init__()
        self.patience_ns = 1 << 60

    def record_batch(self, execution_ns: int, total_ns: int | None) -> None:
        pass

    def may_send(self, elapsed_ns: int) -> bool:
        return True


class _Site:
    def __init__(self, world: InstanceStream, number: int) -> None:
        self.number = number
        self.world = world
        self.withdrawals = BegunBatches()
        self.executing: pb.Batch | None = None
        self.given_back: set[int] = set()
        self.unread: deque[bytes] = deque()
        self.batches = Channel(f"batches {number}", self.on_batch)
        self.replies = Channel(f"replies {number}", self.on_reply)
        self.commands = Channel(f"commands {number}", self.on_withdraw)
        self.events = Channel(f"events {number}", self.on_withdrawn)
        self.instance = Instance(number, f"i{number}", "executor", self)
        self.instance.accepts_waiting = True
        self.instance.pace = _EagerPace()
        self.instance.request_withdrawal = self.commands.send

    # the stream
    def send(self, message: bytes) -> None:
        batch = pb.Batch.FromString(message)
        if batch.members:
            self.batches.send(_Shown(batch))

    send_now = send

    def finish(self) -> None:
        pass

    # the executor
    def on_batch(self, shown: object) -> None:
        self.unread.append(shown)

    def on_withdraw(self, number: object) -> None:
        if self.withdrawals.withdraw(number):
            self.given_back.add(number)
            self.events.send(number)

    def read(self) -> None:
        batch = self.unread.popleft().batch
        if self.withdrawals.begin(batch.id):
            assert batch.id not in self.given_back, f"batch {batch.id} was given back"
            self.executing = batch

    def reply(self) -> None:
        batch, self.executing = self.executing, None
        reply = pb.Executed(id=batch.id)
        for _ in batch.members:
            reply.responses.add(head=b"x")
        self.replies.send(_Shown(reply))

    # the scheduler
    def on_reply(self, shown: object) -> None:
        with self.world.loop.running():
            self.world.version.on_reply(self.instance, shown.batch.SerializeToString())

    def on_withdrawn(self, number: object) -> None:
        with self.world.loop.running():
            self.world.version.batch_withdrawn(self.instance, number)

    def withdraw(self) -> None:
        self.instance.withdraw_waiting()

    def actions(self) -> Iterable[Action]:
        n = self.number
        yield from self.batches.arrivals()
        if self.executing is not None:
            yield Action(f"thread {n}", f"{n} executes {self.executing.id}", self.reply)
        elif self.unread:
            yield Action(f"thread {n}", f"{n} reads {self.unread[0].batch.id}", self.read)
        yield from self.replies.arrivals()
        yield from self.commands.arrivals()
        yield from self.events.arrivals()
        waiting = self.instance.waiting
        if waiting is not None and not waiting.withdrawing:
            yield Action(f"timer {n}", f"{waiting.id} at {n} is overdue", self.withdraw, fault=True)


class _Shown:
    def __init__(self, batch):
        self.batch = batch

    def __str__(self):
        return str(self.batch.id)


class InstanceStream(World):
    def __init__(self, requests: int = 8, instances: int = 2) -> None:
        self.loop = TurnLoop()
        self.responses: dict[int, InferResponse] = {}
        with self.loop.running():
            config = model_of("" + TENSORS)
            self.version = ModelVersion(config, 1, VersionContext(QueueLimits()))
            self.sites = [_Site(self, number) for number in range(1, instances + 1)]
            for site in self.sites:
                self.version.add_instance(site.instance)
            for number in range(1, requests + 1):
                head = kserve_pb2.ModelInferRequest(model_name="m")
                head.inputs.add(name="I", datatype="UINT8", shape=[1])
                self.version.submit(
                    InferRequest(number, head.SerializeToString(), [b"x"]), self.on_response
                )

    def on_response(self, response: InferResponse) -> None:
        assert response.id not in self.responses
        assert response.error is None, response.error
        self.responses[response.id] = response

    def actions(self) -> Iterable[Action]:
        for site in self.sites:
            yield from site.actions()

    def check(self):
        for response in self.responses.values():
            assert response.error is None, response.error

    def check_at_rest(self):
        assert len(self.responses) == 8, sorted(self.responses)


if __name__ == "__main__":
    for bound in range(1, 8):
        found = explore(partial(InstanceStream, instances=1), reorderings=bound, limit=30000)
        print(bound, found)
        if found.failure:
            print(found.failure)
            break
    found = explore_random(InstanceStream, seeds=range(3000))
    print(found, found.failure)
