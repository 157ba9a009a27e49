"""What becomes of the instances that a scheduler asks for: loaded, adopted, kept, given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nereid.backends import InstanceSpec
from nereid.core.wire.messages import ErrorStatus
from nereid.pb import nereid_pb2 as pb
from nereid_executor.backends.registry import BackendRegistry
from nereid_executor.core.model_files import read_model_files
from nereid_executor.core.shared_tensors import SharedTensors
from nereid_executor.instances.instance_context import InstanceContext
from nereid_executor.instances.kept_instances import KeptInstances
from nereid_executor.instances.load_slots import LoadSlots
from nereid_executor.instances.session_instances import (
    ExecutorInstances,
    SessionInstances,
)
from nereid_executor.instances.tenure import SchedulerEndpoint, Tenure
from nereid_executor.settings import ExecutorSettings
from tests.support.waiting import soon, until

LIMIT_S = 10
NO_FILE = ErrorStatus(13, "no such file")
NO_MEMORY = ErrorStatus(13, "failed to allocate")


class Instance:
    """An Instance whose thread the test plays."""

    def __init__(self, spec: InstanceSpec, _context: InstanceContext, tenure: Tenure) -> None:
        self.spec, self.tenure = spec, tenure
        self.version = spec.config.name, spec.version
        self.files = read_model_files(spec.version_path)
        self.loaded, self.ends, self.batches = False, False, 0
        self.memory = {"cpu": 10}
        self.stops: list[tuple[bool, bool]] = []
        self.started = False

    def start(self) -> None:
        self.started = True

    def adopt(self, tenure: Tenure) -> bool:
        self.tenure = tenure
        return not self.ends

    def stop(self, *, abandon: bool = False, keep: bool = False) -> None:
        """It ends, or is kept, at once."""
        self.stops.append((abandon, keep))
        if keep:
            self.tenure.callbacks.on_kept(self)  # type: ignore[arg-type]
        else:
            self.end()

    def load(self) -> None:
        self.loaded = True
        self.tenure.callbacks.on_loaded()

    def end(self, error: ErrorStatus | None = None) -> None:
        self.tenure.callbacks.on_ended(self, error)  # type: ignore[arg-type]


class World:
    """One executor, and sessions with schedulers."""

    def __init__(self, version: Path) -> None:
        self.version = version
        version.mkdir(parents=True)
        (version / "model").write_text("first")
        self.made: asyncio.Queue[Instance] = asyncio.Queue()
        self.events: asyncio.Queue[pb.ExecutorEvent] = asyncio.Queue()
        self.kept = KeptInstances(60.0, lambda: True)
        context = InstanceContext(BackendRegistry(), LoadSlots(1), SharedTensors(0))
        self.shared = ExecutorInstances(
            ExecutorSettings(),
            context,
            self.kept,
            make_instance=self._make,  # type: ignore[arg-type]
        )
        self.session = self.new_session()

    def _make(self, *arguments: Any) -> Instance:
        instance = Instance(*arguments)
        self.made.put_nowait(instance)
        return instance

    def new_session(self) -> SessionInstances:
        mesh: Any = None
        session = SessionInstances(
            self.shared, SchedulerEndpoint("x"), mesh, self.events.put_nowait, lambda: None
        )
        self.shared.begun.session_joined(session, ())
        return session

    def ask(self, number: int, session: SessionInstances | None = None, **fields: Any) -> None:
        load = pb.LoadInstance(
            instance=number,
            instance_name="m_0",
            version=1,
            version_path=str(self.version),
            **fields,
        )
        load.config.name = "m"
        (session or self.session).load(load)

    async def instance(self) -> Instance:
        instance = await asyncio.wait_for(self.made.get(), LIMIT_S)
        assert instance.started
        return instance

    async def loaded(self, number: int) -> Instance:
        self.ask(number)
        instance = await self.instance()
        instance.load()
        return instance

    def found(self, number: int) -> Any:
        return self.session.find(number)

    @property
    def kept_ones(self) -> list[Any]:
        return list(self.kept)

    async def next_event(self) -> tuple[str, int]:
        event = await asyncio.wait_for(self.events.get(), LIMIT_S)
        kind = event.WhichOneof("event")
        assert kind is not None
        return kind, getattr(event, kind).instance

    async def keep_one(self) -> Instance:
        """An instance that a scheduler has had."""
        instance = await self.loaded(1)
        self.session.unload(1, keep=True)
        assert await self.next_event() == ("instance_unloaded", 1)
        assert self.kept_ones == [instance]
        return instance


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path / "m" / "1")
    yield made
    made.kept.close()


async def test_an_instance_is_loaded_and_unloaded(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    instance = await world.loaded(7)
    everything: list[Any] = list(world.session)
    assert everything == [world.found(7)] == [instance]
    world.ask(7)
    assert "requested instance 7 twice" in caplog.text
    assert not world.session.none_left.is_set()
    instance.batches = 3
    world.session.unload(7)
    assert await world.next_event() == ("instance_unloaded", 7)
    assert instance.stops == [(False, False)]
    assert world.session.none_left.is_set()
    assert world.shared.ended_batches == {("m", 1): 3}
    # And what there never was.
    world.session.unload(8)
    assert await world.next_event() == ("instance_unloaded", 8)


async def test_a_kept_one_is_adopted(world: World) -> None:
    instance = await world.keep_one()
    world.ask(2)
    await until(lambda: world.found(2) is not None)
    assert world.found(2) is instance
    assert instance.tenure.number == 2
    assert world.made.empty()


async def test_one_that_is_ending_is_loaded_again(world: World) -> None:
    instance = await world.keep_one()
    instance.ends = True
    world.ask(2)
    assert await world.instance() is not instance


async def test_one_that_is_unloaded_while_files_are_read_is_kept(world: World) -> None:
    instance = await world.keep_one()
    world.ask(2)
    world.session.unload(2)
    assert await world.next_event() == ("instance_unloaded", 2)
    await until(lambda: world.kept_ones == [instance])
    assert world.session.none_left.is_set()


@pytest.mark.parametrize("loads", [True, False])
async def test_changed_files_are_loaded_or_leave_the_last_version_in_service(
    world: World, loads: bool
) -> None:
    former = await world.keep_one()
    (world.version / "model").write_text("second, of another size")
    world.ask(2)
    instance = await world.instance()
    assert former.stops == [(False, True)]
    if loads:
        instance.load()
        await until(lambda: former.stops[1:] == [(False, False)])
        assert world.found(2) is instance
    else:
        instance.end(NO_FILE)
        await until(lambda: world.found(2) is former)
        assert former.tenure.number == 2
    assert world.events.empty()


async def test_the_last_version_is_kept_if_nobody_wants_the_next(world: World) -> None:
    former = await world.keep_one()
    (world.version / "model").write_text("second, of another size")
    world.ask(2)
    await world.instance()
    world.session.stop_all()
    assert await world.next_event() == ("instance_unloaded", 2)
    assert world.kept_ones == [former]


async def test_a_load_that_fails_for_want_of_memory_has_what_is_kept_unloaded(
    world: World,
) -> None:
    kept = await world.keep_one()
    world.ask(2, backend_settings={"a": "b"}, device_id=1)
    instance = await world.instance()
    instance.end(NO_MEMORY)
    again = await world.instance()
    assert kept.stops == [(False, True), (False, False)]
    again.end(NO_MEMORY)
    assert await world.next_event() == ("instance_failed", 2)
    assert world.session.none_left.is_set()


async def test_kept_instances_make_way_for_a_load(world: World) -> None:
    kept = await world.keep_one()
    world.ask(2, device_id=1, kept_bytes={"cpu": 9})
    await world.instance()
    assert kept.stops == [(False, True), (False, False)]


async def test_a_model_has_one_scheduler_at_a_time(world: World) -> None:
    instance = await world.loaded(1)
    other = world.new_session()
    world.ask(5, other, scheduler="b")
    assert other.find(5) is None
    world.session.unload(1)
    assert await world.next_event() == ("instance_unloaded", 1)
    assert await world.instance() is not instance
    # One that waits is forgotten at once.
    world.ask(1)
    world.session.unload(1)
    assert await world.next_event() == ("instance_unloaded", 1)
    assert world.session.none_left.is_set()


async def test_what_waits_is_forgotten_with_its_session(world: World) -> None:
    await world.loaded(1)
    other = world.new_session()
    world.ask(5, other, scheduler="b")
    other.abandon_all()
    await soon(other.none_left)
    world.session.unload(1)
    assert await world.next_event() == ("instance_unloaded", 1)
    assert world.made.empty()


async def test_a_lost_scheduler_leaves_its_instances_to_the_next(world: World) -> None:
    loaded = await world.loaded(1)
    world.ask(2, device_id=1)
    loading = await world.instance()
    world.session.abandon_all()
    # The one that is loading is not waited for.
    assert world.kept_ones == [loading]
    await soon(world.session.none_left)
    assert world.kept_ones == [loading, loaded]
    assert loaded.stops == loading.stops == [(True, True)]


async def test_what_takes_too_long_holds_up_no_other_scheduler(world: World) -> None:
    instance = await world.loaded(1)
    other = world.new_session()
    world.ask(5, other, scheduler="b")
    instance.stop = lambda **_: None  # type: ignore[method-assign]
    world.session.abandon_all()
    world.session.report_end()
    world.session.expire()
    again: Any = await world.instance()
    assert other.find(5) is again


async def test_a_lost_model_is_reported(world: World) -> None:
    instance = await world.loaded(7)
    instance.tenure.callbacks.on_model_lost(2, 9, ErrorStatus(13, "gone"))
    event = await asyncio.wait_for(world.events.get(), LIMIT_S)
    lost = event.instance_lost
    assert (lost.instance, lost.stream, lost.begun, lost.error.message) == (7, 2, 9, "gone")
