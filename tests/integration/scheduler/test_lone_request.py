"""A lone request's way between the gateway's front and an instance's stream, in one process: within
the turn of the event loop that brought it, each way, without a call that is left for another turn.
"""

import asyncio
from typing import Any

from nereid import rpc
from nereid.core.wire.messages import CachedModels, FromScheduler, InferResponse, ToScheduler
from nereid.mesh_routing.router.only_scheduler import OnlySchedulerRouter
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Status
from nereid_gateway.service import joined
from nereid_scheduler.admission.gateway_session import GatewaySession
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from tests.support.mesh.fake_link import IGNORE, UnsharedTensors
from tests.support.scheduler.world import AdmissionWorld, request


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the calls that are left for a later turn."""

    deferred = 0

    def call_soon(self, *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
        self.deferred += 1
        return super().call_soon(*args, **options)

    def call_at(self, *args: Any, **options: Any) -> asyncio.TimerHandle:  # type: ignore[override]
        self.deferred += 1
        return super().call_at(*args, **options)


class Stream:
    """An instance's: keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, message: bytes, at_once: bool = False) -> None:
        assert at_once
        self.sent.append(message)

    def finish(self) -> None:
        raise AssertionError

    def fail(self, status: Status, message: str) -> None:
        """Do nothing."""


async def _serve_lone_requests(loop: CountingLoop) -> None:
    gateway_end: rpc.Link[ToScheduler]
    scheduler_end: rpc.Link[FromScheduler]
    gateway_end, scheduler_end = rpc.memory_links()
    world = AdmissionWorld()
    session = GatewaySession(world.admission)
    session.link = scheduler_end
    scheduler_end.on_items = session.on_items
    client = OnlySchedulerRouter(joined(gateway_end), UnsharedTensors(), None, IGNORE)
    client.open()
    scheduler_end.send(CachedModels(()), at_once=True)
    model, stream = world.ready(), Stream()
    instance = RemoteInstance(1, "i", "executor", stream)
    model.pool.roster.add(instance)
    responses: list[InferResponse] = []
    for number in range(1, 5):
        before = loop.deferred
        client.pending.infer(request(0, request_id="mine"), responses.append, 1)
        while number == 1 and not stream.sent:
            # Its head is not known: it waits for others of its turn.
            await asyncio.sleep(0)
        batch = pb.Batch.FromString(stream.sent[number - 1])
        assert [member.request_id for member in batch.members] == ["mine"]
        executed = pb.Executed(id=batch.id, responses=[pb.InferResponse(head=b"h")])
        model.pool.on_reply(instance, executed.SerializeToString())
        assert len(responses) == number
        assert responses[-1].head == b"h"
        assert number == 1 or loop.deferred == before
        await asyncio.sleep(0)
    statistics = model.statistics
    assert (statistics.success.count, statistics.execution_count) == (4, 4)
    model.close()


def test_passes_without_another_turn_of_the_event_loop() -> None:
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)
        runner.run(_serve_lone_requests(loop))
