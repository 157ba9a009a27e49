"""The executor's service against a scheduler of real sockets, in one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from nereid.core.errors import INTERNAL_MESSAGE
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Status
from nereid.services.executor.backends.registry import BackendRegistry
from nereid.services.executor.service import ExecutorService
from nereid.services.executor.settings import ExecutorSettings, PathMapping
from tests.support.executor import gated_backend
from tests.support.executor.executor_site import IDENTITY, World, running
from tests.support.executor.executor_world import WAIT_S, InstanceStream, Scheduler, request
from tests.support.models.onnx_models import (
    config,
    head,
    identity,
    identity_config,
    member,
    reshaper,
    response_of,
)

BAD_WARM_UP = (
    "max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: 2 }"
    " output { name: 'y' data_type: TYPE_FP32 dims: 2 }"
    " model_warmup { name: 'w' batch_size: 1 inputs { key: 'q' value "
    "{ data_type: TYPE_FP32 dims: 2 zero_data: true } } }"
)


class Gate:
    """Holds a model's execution until it is released."""

    async def busy(self, world: World, number: int) -> InstanceStream:
        """An instance that is at work on a batch."""
        gated = identity_config("FP32", "2")
        gated.backend = "gated"
        world.stay.load(number, gated, "/nowhere")
        stream = await world.scheduler.stream()
        stream.send(request(1))
        assert await asyncio.to_thread(gated_backend.started.wait, WAIT_S)
        return stream

    def release(self) -> None:
        gated_backend.released.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    for event in (gated_backend.started, gated_backend.released, gated_backend.closed):
        event.clear()
    gate = Gate()
    yield gate
    gate.release()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path) as world:
        yield world


async def test_an_executor_says_what_it_has(world: World) -> None:
    assert world.hello.name == "one"
    assert world.hello.host
    assert [device.kind for device in world.hello.devices] == [pb.Device.CPU]
    assert set(world.hello.backends) >= {"identity", "onnxruntime", "python"}


async def test_a_model_is_described(world: World) -> None:
    described = await world.stay.describe(config(""), world.identity())
    assert not described.HasField("error")
    (given,) = described.inputs
    assert (given.name, given.data_type, list(given.dims)) == ("x", 11, [-1, 2])
    assert [one.name for one in described.outputs] == ["y"]


async def test_a_model_that_cannot_be_described_says_why(world: World) -> None:
    described = await world.stay.describe(config(""), str(world.models))
    assert described.error.code == 5
    assert "unable to find" in described.error.message
    other = config("")
    other.backend = "b"
    described = await world.stay.describe(other, world.identity())
    assert described.error.message.startswith("unable to find backend library for backend 'b'")


async def test_an_unknown_failure_is_logged_and_not_told(
    world: World, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gated = config("")
    gated.backend = "gated"
    described = await world.stay.describe(gated, "/nowhere")
    assert (described.error.code, described.error.message) == (13, INTERNAL_MESSAGE)
    assert "secret of /nowhere" in caplog.text


async def test_an_instance_serves_batches_until_it_is_unloaded(world: World) -> None:
    stream = await world.instance(7)
    assert stream.number == 7
    for number in range(3):
        executed = await stream.execute(request(number), request(number + 0.5, rows=2))
        assert [response_of(one)[0][2:] for one in executed.responses] == [
            ([1, 2], np.full(2, number, np.float32).tobytes()),
            ([2, 2], np.full(4, number + 0.5, np.float32).tobytes()),
        ]
    world.stay.unload(7)
    await stream.wait()
    assert (await world.stay.event()).instance_unloaded.instance == 7


async def test_a_batch_under_way_is_responded_before_the_unload(world: World, gate: Gate) -> None:
    stream = await gate.busy(world, 7)
    world.stay.unload(7)
    # What the executor is told next is heard next, so by now it knows of the unload.
    world.stay.unload(99)
    assert (await world.stay.event()).instance_unloaded.instance == 99
    assert not stream.ended.is_set()
    gate.release()
    assert response_of((await stream.responses()).responses[0])[0][2] == [1, 2]
    await stream.wait()
    assert (await world.stay.event()).instance_unloaded.instance == 7
    assert gated_backend.closed.is_set()


async def test_a_stream_that_breaks_under_a_batch_is_dialled_again(
    world: World, gate: Gate
) -> None:
    stream = await gate.busy(world, 7)
    stream.call.fail(Status.UNAVAILABLE, "restarting")
    gate.release()
    again = await world.scheduler.stream()
    assert len((await again.execute(request(1))).responses) == 1


async def test_instances_are_independent(world: World) -> None:
    first, second = await world.instance(1), await world.instance(2)
    world.stay.unload(1)
    await first.wait()
    assert len((await second.execute(request(3))).responses) == 1


@pytest.mark.parametrize(
    ("text", "kind", "code", "reason"),
    [
        ("max_batch_size: 8", 0, 3, "configuration expects 0 inputs, model provides 1"),
        (
            BAD_WARM_UP,
            0,
            13,
            "failed to run warmup sample 'w': unexpected input 'q'",
        ),
        ("", 1, 14, "has no CUDA"),
    ],
)
async def test_an_instance_that_cannot_be_loaded_says_why(
    world: World, text: str, kind: int, code: int, reason: str
) -> None:
    world.stay.load(7, config(text), world.identity(), kind)
    failed = await world.stay.failure()
    assert (failed.instance, failed.error.code) == (7, code)
    assert reason in failed.error.message
    assert world.scheduler.streams_waiting == 0


async def test_a_failing_model_fails_its_batch_and_the_instance_lives_on(world: World) -> None:
    text = (
        "input { name: 'x' data_type: TYPE_FP32 dims: -1 } "
        "input { name: 'to' data_type: TYPE_INT64 dims: -1 } "
        "output { name: 'y' data_type: TYPE_FP32 dims: [-1, -1] }"
    )
    world.stay.load(7, config(text), str(reshaper(world.models / "reshaper" / "1")))
    stream = await world.scheduler.stream()
    inputs = head(("x", "FP32", [4]), ("to", "INT64", [2]))
    four = np.arange(4, dtype=np.float32).tobytes()
    executed = await stream.execute(member(inputs, four, np.array([3, 2]).tobytes()))
    error = executed.responses[0].error
    assert (error.code, error.accepted) == (13, True)
    assert "Reshape" in error.message
    executed = await stream.execute(member(inputs, four, np.array([2, 2]).tobytes()))
    assert response_of(executed.responses[0]) == [("y", "FP32", [2, 2], four)]


async def test_an_instance_dials_again_when_its_stream_breaks(world: World) -> None:
    stream = await world.instance(7)
    stream.call.fail(Status.UNAVAILABLE, "restarting")
    again = await world.scheduler.stream()
    assert again.number == 7
    assert len((await again.execute(request(1))).responses) == 1


async def test_an_instance_that_is_sent_nonsense_is_over(world: World) -> None:
    stream = await world.instance(7)
    stream.call.send(b"\xff")
    await stream.wait()
    failed = await world.stay.failure()
    assert (failed.instance, failed.error.code) == (7, 13)


async def test_an_instance_that_is_refused_is_over(world: World) -> None:
    world.scheduler.refused.add("7")
    world.stay.load(7, IDENTITY, world.identity())
    failed = await world.stay.failure()
    assert failed.error.message == "the scheduler refused the instance: never heard of it"


async def test_a_stream_that_is_ended_in_good_order_stays_ended(world: World) -> None:
    stream = await world.instance(7)
    stream.call.finish()
    world.stay.unload(7)
    assert (await world.stay.event()).instance_unloaded.instance == 7
    assert world.scheduler.streams_waiting == 0


async def test_what_cannot_be_understood_changes_nothing(world: World) -> None:
    stream = await world.instance(7)
    world.stay.call.send(b"\xff")
    world.stay.call.send(b"")
    world.stay.load(7, IDENTITY, world.identity())
    world.stay.unload(99)
    assert (await world.stay.event()).instance_unloaded.instance == 99
    assert len((await stream.execute(request(1))).responses) == 1


async def test_after_the_schedulers_restart_all_begins_anew(tmp_path: Path) -> None:
    scheduler = Scheduler()
    path = str(identity(tmp_path / "1", "FP32", ["n", 2]))
    service = ExecutorService(
        ExecutorSettings(scheduler_address=f"unix:{tmp_path}/socket", name="one", gpus="none"),
        BackendRegistry(),
    )
    # It may start before the scheduler.
    task = asyncio.create_task(service.run())
    async with scheduler.serving(tmp_path / "socket"):
        stay, _ = await scheduler.stay()
        stay.load(7, IDENTITY, path)
        await scheduler.stream()
    async with scheduler.serving(tmp_path / "socket"):
        stay, hello = await scheduler.stay()
        assert hello.name == "one"
        stay.load(8, IDENTITY, path)
        stream = await scheduler.stream()
        assert stream.number == 8
        assert len((await stream.execute(request(1))).responses) == 1
        service.leave()
        assert await asyncio.wait_for(task, WAIT_S)


async def test_leaving_is_told_and_the_batch_under_way_is_responded(
    world: World, gate: Gate
) -> None:
    stream = await gate.busy(world, 7)
    leaving = asyncio.create_task(world.leave())
    assert (await world.stay.event()).HasField("leaving")
    gate.release()
    assert response_of((await stream.responses()).responses[0])[0][2] == [1, 2]
    await stream.wait()
    assert (await world.stay.event()).instance_unloaded.instance == 7
    await world.stay.wait()
    assert await leaving


async def test_batches_on_their_way_to_one_that_leaves_are_responded(world: World) -> None:
    stream = await world.instance(7)
    leaving = asyncio.create_task(world.leave())
    assert (await world.stay.event()).HasField("leaving")
    assert len((await stream.execute(request(1))).responses) == 1
    await stream.wait()
    assert await leaving


async def test_leaving_does_not_wait_for_ever(tmp_path: Path, gate: Gate) -> None:
    async with running(tmp_path, exit_timeout_secs=0.01) as world:
        await gate.busy(world, 7)
        assert not await world.leave()
    # The instance finds nobody left to tell.
    gate.release()
    assert await asyncio.to_thread(gated_backend.closed.wait, WAIT_S)


async def test_an_response_that_a_lost_scheduler_never_takes_holds_nobody(world: World) -> None:
    path = identity(world.models / "any" / "1", "FP32", ["n", "m"])
    world.stay.load(7, identity_config("FP32", "-1"), str(path))
    stream = await world.scheduler.stream()
    # The answer is larger than the window, and that will not grow.
    stream.call.pause()
    values = np.zeros(1 << 20, np.float32)
    stream.send(member(head(("x", "FP32", [1, 1 << 20])), values.tobytes()))
    async with asyncio.timeout(WAIT_S):
        while stream.call.buffered_bytes:
            await asyncio.sleep(0.01)
    world.stay.call.fail(Status.UNAVAILABLE, "restarting")
    await world.scheduler.stay()
    assert "instance-m_7" not in {thread.name for thread in threading.enumerate()}


async def test_instances_of_a_lost_scheduler_finish_and_are_freed(world: World, gate: Gate) -> None:
    await gate.busy(world, 7)
    world.stay.call.fail(Status.UNAVAILABLE, "restarting")
    gate.release()
    assert await asyncio.to_thread(gated_backend.closed.wait, WAIT_S)
    stay, hello = await world.scheduler.stay()
    assert hello.name == "one"
    stay.unload(7)
    assert (await stay.event()).instance_unloaded.instance == 7


async def test_leaving_without_a_scheduler(tmp_path: Path) -> None:
    service = ExecutorService(
        ExecutorSettings(scheduler_address=f"unix:{tmp_path}/no"), BackendRegistry()
    )
    task = asyncio.create_task(service.run())
    await asyncio.sleep(0)
    service.leave()
    assert await asyncio.wait_for(task, WAIT_S)


async def test_models_may_lie_elsewhere_than_for_the_scheduler(tmp_path: Path) -> None:
    mapping = PathMapping(PurePosixPath("/theirs"), PurePosixPath(tmp_path))
    async with running(tmp_path, model_repository_map=(mapping,)) as world:
        world.identity()
        described = await world.stay.describe(config(""), "/theirs/identity/1")
        assert [one.name for one in described.inputs] == ["x"]
        world.stay.load(7, IDENTITY, "/theirs/identity/1")
        assert len((await (await world.scheduler.stream()).execute(request(1))).responses) == 1
