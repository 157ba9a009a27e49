"""Instances that outlive their scheduler's session: kept, adopted, and never of two schedulers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Status
from nereid_executor.backends.registry import BUILT_IN, BackendRegistry
from nereid_executor.service import ExecutorService
from nereid_executor.settings import ExecutorSettings
from tests.support.executor import gated_backend
from tests.support.executor.executor_site import GATED
from tests.support.executor.executor_world import (
    WAIT_S,
    InstanceStream,
    JoinStream,
    Scheduler,
    request,
)
from tests.support.models.onnx_models import identity_config
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    """The model executes at once; what was loaded before does not count."""
    gated_backend.reset()
    gated_backend.released.set()
    yield
    gated_backend.released.set()


@dataclass
class Place:
    """One scheduler, and the executor's session with it."""

    scheduler: Scheduler
    session: JoinStream
    hello: pb.Hello

    async def rejoin(self) -> pb.Hello:
        """Lose the executor, as a scheduler that is killed does, and have it back."""
        self.session.call.fail(Status.UNAVAILABLE, "restarting")
        self.session, hello = await self.scheduler.accept_session()
        return hello


class World:
    """One executor with a model of one version, and the schedulers that it has joined."""

    def __init__(self, service: ExecutorService, models: Path, schedulers: list[Place]) -> None:
        self.service = service
        self.version = models / "m" / "1"
        self.version.mkdir(parents=True)
        (self.version / "model").write_text("first")
        self.schedulers = schedulers
        self.a, self.b = schedulers[0], schedulers[-1]
        self.config = identity_config("FP32", "2")
        self.config.name, self.config.backend = "m", "gated"

    def ask(self, place: Place, number: int, **fields: Any) -> None:
        """Ask for an instance, always the same."""
        config: model_config_pb2.ModelConfig = self.config
        path = str(self.version)
        place.session.load(number, config, path, instance_name="m_0", **fields)

    async def load(self, place: Place, number: int, **fields: Any) -> InstanceStream:
        self.ask(place, number, **fields)
        stream = await place.scheduler.accept_stream()
        assert stream.number == number
        return stream

    def kept_past_its_time(self) -> bool:
        """Whether an instance is kept that nobody has asked for in time."""
        instances = self.service._instances
        return instances is not None and len(instances.kept) == 1 and not instances.kept._timer

    @property
    def loads(self) -> int:
        return len(gated_backend.specs)


@asynccontextmanager
async def running(tmp_path: Path, count: int = 1, **settings: object) -> AsyncIterator[World]:
    schedulers = [Scheduler() for _ in range(count)]
    addresses = [f"unix:{tmp_path}/{number}" for number in range(count)]
    service = ExecutorService(
        ExecutorSettings(
            scheduler_address=",".join(addresses),
            name="one",
            gpus="none",
            **settings,  # type: ignore[arg-type]
        ),
        BackendRegistry(built_in={**BUILT_IN, "gated": GATED}),
    )
    async with asyncio.TaskGroup() as group:
        servers = [each.serving(tmp_path / str(n)) for n, each in enumerate(schedulers)]
        for server in servers:
            await server.__aenter__()
        task = group.create_task(service.run())
        try:
            places = [Place(each, *await each.accept_session()) for each in schedulers]
            yield World(service, tmp_path / "models", places)
        finally:
            gated_backend.released.set()
            service.leave()
            await asyncio.wait_for(task, WAIT_S)
            for server in servers:
                await server.__aexit__(None, None, None)


async def _executes(stream: InstanceStream) -> bool:
    return len((await stream.execute(request(1))).responses) == 1


async def test_an_instance_is_adopted_by_the_next_session(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        stream = await world.load(world.a, 7)
        # Batches are numbered from 1 by each scheduler: one that was withdrawn is not the next's.
        stream.send(request(1), number=1)
        await stream.responses()
        world.a.session.withdraw(7, 2)
        assert (await world.a.session.event()).withdrawn.batch == 2
        for number in (3, 4):
            await world.a.rejoin()
            stream = await world.load(world.a, number)
            stream.send(request(1), number=2)
            assert len((await stream.responses()).responses) == 1
            # It is an instance like any other: its stream may break.
            stream.call.fail(Status.UNAVAILABLE, "a hiccup")
            assert await _executes(await world.a.scheduler.accept_stream())
        assert world.loads == 1
        world.a.session.unload(4)
        assert (await world.a.session.event()).instance_unloaded.instance == 4
        assert gated_backend.closed.is_set()


async def test_repository_agents_see_the_files_before_each_load(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        assert "checksum" in world.a.hello.repository_agents
        agent = world.config.model_repository_agents.agents.add(name="checksum")
        agent.parameters["MD5:1/model"] = "0" * 32
        world.ask(world.a, 6)
        failure = await world.a.session.failure()
        assert failure.instance == 6
        assert "Mismatched MD5 hash for file 1/model, expect: 000" in failure.error.message
        assert world.loads == 0
        agent.parameters["MD5:1/model"] = hashlib.md5(b"first").hexdigest()
        # This backend describes nothing, but it is asked.
        described = await world.a.session.describe(world.config, str(world.version))
        assert described.error.message.startswith("internal error")
        assert await _executes(await world.load(world.a, 7))
        # The kept instance is adopted, as one without agents.
        await world.a.rejoin()
        assert await _executes(await world.load(world.a, 8))
        assert world.loads == 1
        (world.version / "model").write_text("changed")
        described = await world.a.session.describe(world.config, str(world.version))
        assert "Mismatched MD5" in described.error.message
        # One that is not wanted any more when its files are ready.
        agent.parameters["MD5:1/model"] = hashlib.md5(b"changed").hexdigest()
        world.ask(world.a, 9)
        world.a.session.unload(9)
        assert (await world.a.session.event()).instance_unloaded.instance == 9
        world.a.session.unload(8)
        assert (await world.a.session.event()).instance_unloaded.instance == 8
        assert world.loads == 1


async def test_what_was_begun_is_finished_and_can_be_recalled(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        stream = await world.load(world.a, 7)
        gated_backend.released.clear()
        member = request(1)
        member.id = 12
        stream.send(member)
        assert await asyncio.to_thread(gated_backend.started.wait, WAIT_S)
        hello = await world.a.rejoin()
        assert list(hello.begun_requests) == [12]
        world.ask(world.a, 8)
        recall = pb.ExecutorCommand(recall=pb.Recall(request=12))
        world.a.session.call.send(recall.SerializeToString())
        gated_backend.released.set()
        recalled = (await world.a.session.event()).recalled
        assert recalled.request == 12
        assert recalled.HasField("response")
        assert await _executes(await world.a.scheduler.accept_stream())
        assert world.loads == 1


async def test_a_load_goes_on_and_the_next_session_gets_the_instance(tmp_path: Path) -> None:
    async with running(tmp_path, count=2) as world:
        world.config.parameters["slow_load"].string_value = "yes"
        gated_backend.released.clear()
        world.ask(world.a, 7)
        assert await asyncio.to_thread(gated_backend.started.wait, WAIT_S)
        # Adopted twice before it has been loaded.
        await world.a.rejoin()
        world.ask(world.b, 1)
        await world.b.rejoin()
        world.ask(world.a, 8)
        gated_backend.released.set()
        stream = await world.a.scheduler.accept_stream()
        assert stream.number == 8
        assert await _executes(stream)
        assert world.loads == 1


async def test_what_nobody_asks_for_is_unloaded_once_there_is_a_scheduler(tmp_path: Path) -> None:
    async with running(tmp_path, kept_instance_secs=0.05) as world:
        await world.load(world.a, 7)
        await world.a.rejoin()
        # It has not been accepted yet: no scheduler could have asked.
        await until(world.kept_past_its_time)
        assert not gated_backend.closed.is_set()
        world.a.session.unload(99)
        assert (await world.a.session.event()).instance_unloaded.instance == 99
        assert await asyncio.to_thread(gated_backend.closed.wait, WAIT_S)
        assert await _executes(await world.load(world.a, 8))
        assert world.loads == 2


async def test_every_address_of_a_name_is_joined(tmp_path: Path) -> None:
    scheduler, other = Scheduler(), Scheduler()
    path = tmp_path / "socket"
    async with scheduler.serving("127.0.0.1:0") as address, other.serving(path) as beside:
        port = address.rpartition(":")[2]
        addresses = f"dns:localhost:{port},{beside},dns:nowhere.invalid:1"
        settings = ExecutorSettings(scheduler_address=addresses, name="one", gpus="none")
        service = ExecutorService(settings, BackendRegistry())
        task = asyncio.create_task(service.run())
        for each in (scheduler, other):
            assert (await each.accept_session())[1].name == "one"
        service.leave()
        assert await asyncio.wait_for(task, WAIT_S)
