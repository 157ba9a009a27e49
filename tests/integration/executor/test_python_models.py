"""An executor's Python models against a scheduler of real sockets: serving, ending, restarting."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf import text_format

from nereid.core.errors import Internal
from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Status
from nereid_executor.backends.registry import BackendRegistry
from nereid_executor.service import ExecutorService
from nereid_executor.settings import ExecutorSettings
from tests.support.executor.executor_world import WAIT_S, InstanceStream, JoinStream, Scheduler
from tests.support.models import python_models
from tests.support.models.onnx_models import head, member, response_of
from tests.support.waiting import until

LOST = "Stub process 'm_7' is not healthy."


def command(text: str) -> pb.BatchMember:
    data = text.encode()
    return member(head(("COMMAND", "BYTES", [1])), struct.pack("<I", len(data)) + data)


def reply(executed: pb.Executed) -> str:
    (response,) = executed.responses
    return response_of(response)[0][3][4:].decode()


class World:
    """One executor with one Python model."""

    def __init__(self, scheduler: Scheduler, service: ExecutorService, root: Path) -> None:
        self.scheduler = scheduler
        self.service = service
        self.running = asyncio.create_task(service.run())
        self.path = str(python_models.save(root, "talk") / "1")
        self.numbers = iter(range(1, 100))
        self.session: JoinStream

    async def load(self, more: str = "") -> InstanceStream:
        written = f'name: "m" {python_models.TALK} {more}'
        config = text_format.Parse(written, model_config_pb2.ModelConfig())
        self.session.load(7, config, self.path)
        return await self.scheduler.accept_stream()

    def send(self, stream: InstanceStream, text: str) -> int:
        number = next(self.numbers)
        stream.send(command(text), number=number)
        return number

    async def say(self, stream: InstanceStream, text: str) -> str:
        number = self.send(stream, text)
        executed = await stream.responses()
        assert executed.id == number
        return reply(executed)

    async def busy(self, stream: InstanceStream, place: Path) -> int:
        """Have it begin something that lasts until there is a file "enough"; its process."""
        process = int(await self.say(stream, "pid"))
        self.send(stream, f"meet {place}")
        await until((place / f"{process}.begun").exists)
        return process


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    scheduler = Scheduler()
    async with scheduler.serving(tmp_path / "socket") as address:
        settings = ExecutorSettings(scheduler_address=address, name="one", gpus="none")
        world = World(scheduler, ExecutorService(settings, BackendRegistry()), tmp_path / "models")
        world.session, _ = await scheduler.accept_session()
        try:
            yield world
        finally:
            (tmp_path / "enough").touch()
            world.service.leave()
            await asyncio.wait_for(world.running, WAIT_S)


async def test_a_worker_serves_its_stream_until_it_is_unloaded(world: World) -> None:
    stream = await world.load()
    assert stream.call.get("nereid-crash-reports") == "1"
    assert [await world.say(stream, f"echo {n}") for n in range(3)] == ["0", "1", "2"]
    assert int(await world.say(stream, "pid")) != os.getpid()
    world.session.unload(7)
    await stream.wait()
    assert (await world.session.event()).instance_unloaded.instance == 7


async def test_a_lost_worker_is_reported_with_the_batch_that_it_had_begun(world: World) -> None:
    stream = await world.load()
    assert await world.say(stream, "echo well") == "well"
    number = world.send(stream, "die SIGKILL")
    lost = (await world.session.event()).instance_lost
    assert (lost.instance, lost.begun) == (7, number)
    assert (lost.error.code, lost.error.message, lost.error.accepted) == (Internal.code, LOST, True)
    await stream.wait()
    again = await world.scheduler.accept_stream()
    assert await world.say(again, "echo again") == "again"


async def test_a_broken_stream_is_opened_again_by_the_same_worker(
    world: World, tmp_path: Path
) -> None:
    stream = await world.load()
    process = await world.busy(stream, tmp_path)
    stream.call.fail(Status.UNAVAILABLE, "restarting")
    (tmp_path / "enough").touch()
    again = await world.scheduler.accept_stream()
    assert int(await world.say(again, "pid")) == process


@pytest.mark.parametrize("config", ["", python_models.LIMIT], ids=["worker", "executor"])
@pytest.mark.parametrize(
    "broken",
    [
        pb.Batch(id=1, members=[command("echo x")]),
        pb.Batch(controls=[pb.MemberControl(batch=99)]),
        pb.Batch(id=2, exported_slots=[1]),
    ],
    ids=["order", "control", "export"],
)
async def test_a_scheduler_that_breaks_the_protocol_loses_the_stream(
    world: World, config: str, broken: pb.Batch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = await world.load(config)
    process = await world.say(stream, "pid")
    stream.call.send(broken.SerializeToString())
    await stream.wait()
    again = await world.scheduler.accept_stream()
    assert await world.say(again, "pid") == process
    lines = [each for each in caplog.records if "broke the protocol" in each.message]
    assert [each.levelname for each in lines] == ["ERROR"]


async def test_a_refused_instance_ends(world: World) -> None:
    world.scheduler.refused.add("7")
    config = text_format.Parse(f'name: "m" {python_models.TALK}', model_config_pb2.ModelConfig())
    world.session.load(7, config, world.path)
    failed = await world.session.failure()
    assert failed.instance == 7
    assert "never heard of it" in failed.error.message


async def test_when_the_scheduler_is_lost_workers_end_at_once(world: World, tmp_path: Path) -> None:
    process = await world.busy(await world.load(), tmp_path)
    world.session.call.fail(Status.UNAVAILABLE, "restarting")
    world.session, _ = await world.scheduler.accept_session()
    await until(lambda: not Path(f"/proc/{process}").exists())


@pytest.mark.parametrize("config", ["", python_models.LIMIT], ids=["worker", "executor"])
async def test_a_worker_is_kept_for_the_next_session(world: World, config: str) -> None:
    stream = await world.load(config)
    process = await world.say(stream, "pid")
    for _ in range(2):
        world.session.call.fail(Status.UNAVAILABLE, "restarting")
        world.session, _ = await world.scheduler.accept_session()
        stream = await world.load(config)
        assert await world.say(stream, "pid") == process


async def test_what_a_worker_ran_before_is_known_while_it_executes(
    world: World, tmp_path: Path
) -> None:
    stream = await world.load()
    done, begun = command("pid"), command(f"meet {tmp_path}")
    done.id, begun.id = 11, 12
    stream.send(done, number=1)
    process = reply(await stream.responses())
    stream.send(begun, number=2)
    await until((tmp_path / f"{process}.begun").exists)
    world.session.call.fail(Status.UNAVAILABLE, "restarting")
    world.session, hello = await world.scheduler.accept_session()
    assert sorted(hello.begun_requests) == [11, 12]
    world.session.call.send(pb.ExecutorCommand(recall=pb.Recall(request=11)).SerializeToString())
    recalled = (await world.session.event()).recalled
    assert reply(pb.Executed(responses=[recalled.response])) == process
    (tmp_path / "enough").touch()
    assert await world.say(await world.load(), "pid") == process


async def test_a_kept_worker_that_has_ended_is_started_again(world: World) -> None:
    stream = await world.load()
    process = await world.say(stream, "pid")
    world.session.unload(7, keep=True)
    assert (await world.session.event()).instance_unloaded.instance == 7
    os.kill(int(process), signal.SIGKILL)
    stream = await world.load()
    # No batch of this scheduler's was lost with it.
    assert (await world.session.event()).instance_lost.begun == 0
    assert await world.say(stream, "pid") != process


@pytest.mark.parametrize("config", ["", python_models.LIMIT], ids=["worker", "executor"])
async def test_requests_may_be_responded_to_after_execution(world: World, config: str) -> None:
    stream = await world.load(config)
    held = world.send(stream, "hold me")
    executed = await stream.responses()
    # It can have its next batch.
    assert (executed.id, executed.partial, executed.busy) == (held, True, False)
    assert not executed.responses
    stream.send(command("hold this"), command("echo that"), number=(number := next(world.numbers)))
    executed = await stream.responses()
    assert (executed.id, executed.partial) == (number, True)
    assert [(one.id, response_of(one)[0][3][4:]) for one in executed.responses] == [(1, b"that")]
    # An unload waits for those that are open.
    world.session.unload(7)
    world.session.unload(99)
    assert (await world.session.event()).instance_unloaded.instance == 99
    last = world.send(stream, "release")
    responses: dict[tuple[int, int], bytes] = {}
    while len(responses) < 3:
        executed = await stream.responses()
        for one in executed.responses:
            responses[executed.id, one.id] = response_of(one)[0][3][4:]
    assert responses == {(held, 0): b"me", (number, 0): b"this", (last, 0): b"2"}
    await stream.wait()
    assert (await world.session.event()).instance_unloaded.instance == 7


@pytest.mark.parametrize("size", [2, 100_000])
async def test_a_deferred_response_does_not_wait_for_the_batch_in_execution(
    world: World, tmp_path: Path, size: int
) -> None:
    stream = await world.load()
    held = world.send(stream, "hold " + "x" * size)
    assert (await stream.responses()).partial
    process = await world.say(stream, "pid")
    other = world.send(stream, f"meanwhile release {tmp_path}")
    executed = await stream.responses()
    assert (executed.id, reply(executed)) == (held, "x" * size)
    (tmp_path / "enough").touch()
    executed = await stream.responses()
    assert (executed.id, reply(executed)) == (other, process)


async def test_a_deferred_request_can_be_cancelled(world: World) -> None:
    stream = await world.load()
    held = world.send(stream, "hold me")
    assert (await stream.responses()).partial
    assert await world.say(stream, "withdrawn") == "False"
    message = pb.Batch()
    message.controls.add(batch=held, member=0, kind=pb.MemberControl.CANCEL)
    stream.call.send(message.SerializeToString())
    assert await world.say(stream, "withdrawn") == "True"
    world.send(stream, "release")
    assert sorted([(await stream.responses()).id, (await stream.responses()).id]) == [held, 4]


@pytest.mark.parametrize("config", ["", python_models.LIMIT], ids=["worker", "executor"])
async def test_a_sender_lost_in_a_reference_cycle_costs_its_request_alone(
    world: World, config: str
) -> None:
    stream = await world.load(config)
    world.send(stream, "lose")
    assert (await stream.responses()).partial
    (response,) = (await stream.responses()).responses
    assert "let go of a request" in response.error.message
    assert await world.say(stream, "echo again") == "again"


async def test_where_the_worker_cannot_serve_the_executor_does(world: World) -> None:
    stream = await world.load(python_models.LIMIT)
    assert stream.call.get("nereid-crash-reports") is None
    assert [await world.say(stream, f"echo {n}") for n in range(3)] == ["0", "1", "2"]
    world.send(stream, "die SIGKILL")
    (response,) = (await stream.responses()).responses
    assert (response.error.code, response.error.message) == (Internal.code, LOST)
    again = await world.scheduler.accept_stream()
    assert await world.say(again, "echo again") == "again"
