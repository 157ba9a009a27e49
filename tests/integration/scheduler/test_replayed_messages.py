"""Messages of the mesh that come again, out of order, cut short or in floods: they end the stream
of whoever sends them, and no request of a client.

Where the mesh port needs no token: with one, a captured call opens nothing (test_mesh_access).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from nereid.core.methods import EXECUTE_PATH, EXECUTOR_KEY, INFER_PATH, INSTANCE_KEY, JOIN_PATH
from nereid.core.wire.codecs import RequestCodec
from nereid.core.wire.messages import InferRequest
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError, Status
from tests.support.scheduler.scheduler_world import (
    LIMIT_S,
    Gateway,
    World,
    add_model,
    numbers_of,
    world,
)


def request(*numbers: float) -> InferRequest:
    head = kserve_pb2.ModelInferRequest(model_name="doubler")
    head.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 2])
    return InferRequest(1, head.SerializeToString(), [np.array(numbers, "<f4").tobytes()])


async def ask(gateway: Gateway, *numbers: float) -> list[float]:
    response = await asyncio.wait_for(gateway.send(request(*numbers)), LIMIT_S)
    return numbers_of(response)


class Rogue:
    """A stream to the scheduler that says whatever it likes."""

    def __init__(
        self, site: World, path: str, *messages: bytes, metadata: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self._ended: asyncio.Future[RpcError | None] = asyncio.get_running_loop().create_future()
        self.received: list[bytes] = []
        self.stream = site.channel().stream(
            path, metadata=metadata, on_message=self.received.append, on_close=self._on_close
        )
        for each in messages:
            self.stream.send(each)

    def _on_close(self, error: RpcError | None) -> None:
        if not self._ended.done():
            self._ended.set_result(error)

    async def end(self) -> Status | None:
        """How the scheduler ends it."""
        error = await asyncio.wait_for(self._ended, LIMIT_S)
        return None if error is None else error.status


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_model(tmp_path / "models")
    return tmp_path / "models"


def event(**fields: object) -> bytes:
    return pb.ExecutorEvent(**fields).SerializeToString()  # type: ignore[arg-type]


async def test_an_instances_stream_is_opened_by_its_own_executor_alone(repository: Path) -> None:
    async with world(repository) as site:
        executor = await site.executor(process="secret")
        await site.until_state("READY")
        gateway = await site.gateway()
        number = str(executor.instances[0].load.instance)
        for metadata in (
            ((INSTANCE_KEY, number),),
            ((INSTANCE_KEY, number), (EXECUTOR_KEY, "another")),
            ((INSTANCE_KEY, str(int(number) + 1)), (EXECUTOR_KEY, "secret")),
            ((INSTANCE_KEY, "9" * 20), (EXECUTOR_KEY, "secret")),
            ((INSTANCE_KEY, "-1"),),
            ((INSTANCE_KEY, "1" * 5000),),
            (),
        ):
            rogue = Rogue(site, EXECUTE_PATH, b"\xff", metadata=metadata)
            assert await rogue.end() is Status.NOT_FOUND
        assert await ask(gateway, 1, 2) == [2, 4]
        assert not executor.instances[0].closed.is_set()


@pytest.mark.parametrize("what", ["twice", "unknown", "cut"])
async def test_a_response_that_comes_again_ends_its_stream_alone(
    repository: Path, what: str
) -> None:
    async with world(repository) as site:
        executor = await site.executor(hold=True)
        await site.until_state("READY")
        gateway = await site.gateway()
        first = gateway.send(request(1, 2))
        instance, batch = await executor.batch()
        instance.response(batch)
        assert numbers_of(await asyncio.wait_for(first, LIMIT_S)) == [2, 4]
        second = gateway.send(request(3, 4))
        instance, running = await executor.batch()
        if what == "twice":
            instance.response(batch)
        elif what == "unknown":
            instance.stream.send(pb.Executed(id=running.id + 1).SerializeToString())
        else:
            instance.stream.send(pb.Executed(id=running.id).SerializeToString() + b"\x12\x7f")
        await asyncio.wait_for(instance.closed.wait(), LIMIT_S)
        assert instance.error is not None
        assert instance.error.status is Status.INTERNAL
        # What it had runs again, on its next stream.
        executor.hold = False
        executor.load(instance.load)
        assert numbers_of(await asyncio.wait_for(second, LIMIT_S)) == [6, 8]


async def test_messages_of_an_executor_in_the_wrong_order(repository: Path) -> None:
    hello = pb.Hello(name="one", host="here", backends=["onnxruntime"])
    async with world(repository) as site:
        executor = await site.executor()
        await site.until_state("READY")
        gateway = await site.gateway()
        ended = pb.InstanceUnloaded(instance=executor.instances[0].load.instance)
        for messages, status in (
            ([event(instance_unloaded=ended)], Status.INVALID_ARGUMENT),
            ([event(hello=hello)], Status.ALREADY_EXISTS),
            ([event(hello=hello)[:-3]], Status.INVALID_ARGUMENT),
            ([event(hello=pb.Hello(name="two"))] * 2, Status.INVALID_ARGUMENT),
            ([event(hello=pb.Hello(name="two")), b"\x0a"], Status.INVALID_ARGUMENT),
        ):
            assert await Rogue(site, JOIN_PATH, *messages).end() is status
        assert await ask(gateway, 1, 2) == [2, 4]
        # Of another executor's instances nobody else can report anything.
        failed = pb.InstanceFailed(instance=ended.instance, error=pb.ErrorStatus(code=13))
        lost = pb.InstanceLost(instance=ended.instance, begun=99, error=pb.ErrorStatus(code=13))
        withdrawn = pb.Withdrawn(instance=ended.instance, batch=1)
        rogue = Rogue(
            site,
            JOIN_PATH,
            event(hello=pb.Hello(name="two")),
            event(instance_failed=failed),
            event(instance_lost=lost),
            event(instance_unloaded=ended),
            event(withdrawn=withdrawn),
        )
        assert await ask(gateway, 3, 4) == [6, 8]
        rogue.stream.half_close()
        assert await rogue.end() is None
        assert await ask(gateway, 5, 6) == [10, 12]
        assert not executor.closed.is_set()
        assert not executor.instances[0].closed.is_set()


async def test_a_flood_of_unknown_events_is_one_line(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(repository) as site:
        await site.executor()
        await site.until_state("READY")
        gateway = await site.gateway()
        flood = [event()] * 2000
        rogue = Rogue(site, JOIN_PATH, event(hello=pb.Hello(name="two")), *flood)
        rogue.stream.half_close()
        assert await ask(gateway, 1, 2) == [2, 4]
        assert await rogue.end() is None
    assert sum("unknown events" in each.getMessage() for each in caplog.records) == 1


async def test_frames_of_a_gateway_sent_again_by_another(repository: Path) -> None:
    frame = RequestCodec(lambda: 0.0).encode([request(7, 7), request(8, 8)])
    async with world(repository) as site:
        executor = await site.executor(hold=True)
        await site.until_state("READY")
        gateway = await site.gateway()
        # Of the same number.
        waiting = gateway.send(request(1, 2))
        instance, batch = await executor.batch()
        rogue = Rogue(site, INFER_PATH, frame, frame, frame)
        cut = Rogue(site, INFER_PATH, frame[:-1])
        assert await cut.end() is Status.INVALID_ARGUMENT
        executor.hold = False
        instance.response(batch)
        assert numbers_of(await asyncio.wait_for(waiting, LIMIT_S)) == [2, 4]
        assert await ask(gateway, 3, 4) == [6, 8]
        assert {len(each) for each in gateway.responses.values()} == {1}
        rogue.stream.half_close()
        await rogue.end()
        assert await ask(gateway, 5, 6) == [10, 12]
