"""What flags, clients, records and polls ask the reconciler for, by the mode."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from nereid.core.errors import Internal, InvalidArgument, Unavailable
from nereid_scheduler.control.sources.model_control import ModelControl
from nereid_scheduler.core.models.lifecycle import LoadStatus, VersionState
from nereid_scheduler.core.models.model_record import ModelRecord
from nereid_scheduler.core.models.overrides import Override
from tests.support.scheduler.reconciler_world import ReconcilerWorld, turns
from tests.support.scheduler.world import found
from tests.support.waiting import LIMIT_S, until

if TYPE_CHECKING:
    from collections.abc import Awaitable

UP, FAILED = LoadStatus.UP, LoadStatus.FAILED


class World(ReconcilerWorld):
    def __init__(self, *names: str, **rules: Any) -> None:
        """names: the models in the repository."""
        super().__init__(**rules)
        self.repositories.models |= {each: found(each) for each in names}
        self.control = ModelControl(
            cast("Any", self.repositories),
            self.catalogue,
            self.desired,
            self.reconciler,
            self.rules,
            self.sources,
        )

    async def loaded(self, count: int) -> set[str]:
        """Executors load so many versions, and no more."""
        names = {(await self.loader.report(UP)).name for _ in range(count)}
        await turns()
        assert self.loader.begun.empty()
        return names


async def in_time(call: Awaitable[None]) -> None:
    await asyncio.wait_for(call, LIMIT_S)


@pytest.mark.parametrize(
    ("mode", "initial", "loaded"),
    [
        ("none", (), {"a", "e", "s"}),
        ("poll", (), {"a", "e", "s"}),
        ("explicit", ("*",), {"a", "e", "s"}),
        ("explicit", ("e",), {"e", "s"}),
        ("explicit", (), set()),
    ],
)
async def test_the_first_loads(mode: str, initial: tuple[str, ...], loaded: set[str]) -> None:
    it = World("a", "s", mode=mode, initial_models=initial)
    it.repositories.models["e"] = found("e", "s")
    await it.control.start()
    # As soon as it has started, requests find the states.
    assert {each.name for each in it.catalogue.models()} == loaded
    assert await it.loaded(len(loaded)) == loaded
    assert await it.control.first_loads()
    assert it.desired.requested == set(initial) - {"*"}
    await it.reconciler.tasks.close()


async def test_a_first_load_that_fails_is_reported() -> None:
    it = World("a", mode="none")
    await it.control.start()
    await it.loader.report(FAILED)
    assert not await it.control.first_loads()


async def test_a_start_without_models_warns(caplog: pytest.LogCaptureFixture) -> None:
    await World(mode="none").control.start()
    assert "there are no models in /models" in caplog.text


async def test_records_are_restored_at_the_start_and_outvote_flags() -> None:
    it = World("flag", "gone", alone=False, initial_models=("flag", "gone"))
    records = {
        "recorded": ModelRecord("recorded", loaded=True),
        "files": ModelRecord("files", loaded=True, files={"f": "digest"}),
        "gone": ModelRecord("gone", loaded=False),
    }
    it.records.readable.clear()
    await it.control.start(records)
    assert await it.loaded(2) == {"flag", "recorded"}
    assert it.desired.awaited == {"files": "files"}
    # Not those of clients: --exit-on-error is about the flags.
    assert await it.control.first_loads()
    it.records.readable.set()
    assert await it.loaded(1) == {"files"}
    assert it.on_demand.deferred == []


async def test_records_that_become_known_later_are_restored_then() -> None:
    it = World("flag", "gone", "away", alone=False, initial_models=("flag", "gone", "away"))
    it.control.await_records()
    await it.control.start()
    await it.loaded(3)
    it.moves.away = {"away"}
    assert it.desired.restoring
    records = {"recorded": ModelRecord("recorded", loaded=True)}
    records |= {each: ModelRecord(each, loaded=False) for each in ("gone", "away")}
    await it.control.restore(records)
    assert not it.desired.restoring
    assert await it.loaded(1) == {"recorded"}
    states = [it.states(each)[0] for each in ("flag", "gone", "away")]
    assert states == [VersionState.READY, VersionState.UNLOADING, VersionState.READY]


async def test_models_that_are_loaded_on_demand_are_not_loaded_at_the_start() -> None:
    it = World("flag", "lazy", "eager", alone=False, initial_models=("flag",))
    it.on_demand.lazy = {"flag", "lazy"}
    await it.control.start()
    assert await it.loaded(1) == {"flag"}
    assert it.on_demand.deferred == ["lazy"]


# ---- clients


async def test_clients_load_and_unload() -> None:
    it = World("s", "t")
    it.repositories.models["e"] = found("e", "s", "t")
    load = asyncio.create_task(it.control.load("e"))
    await it.loaded(3)
    await in_time(load)
    await in_time(it.control.load("t"))
    assert sorted(await it.control.found_names()) == ["e", "s", "t"]
    await in_time(it.control.unload("e", dependents=True))
    # But for what was loaded by name.
    states = [it.states(each)[0] for each in "est"]
    assert states == [VersionState.UNLOADING, VersionState.UNLOADING, VersionState.READY]


async def test_a_load_goes_on_without_its_client_and_its_error_is_raised() -> None:
    it = World("m")
    gone, waits = (asyncio.create_task(it.control.load("m")) for _ in range(2))
    served = await asyncio.wait_for(it.loader.begun.get(), LIMIT_S)
    gone.cancel()
    await asyncio.wait([gone])
    served.life.report("executor", UP)
    it.loader.waiters.notify_all()
    await in_time(waits)
    with pytest.raises(Internal, match="no such model"):
        await in_time(it.control.load("n"))


@pytest.mark.parametrize(
    ("mode", "name", "override", "error"),
    [
        ("none", "m", None, Unavailable),
        ("explicit", "../m", None, InvalidArgument),
        ("explicit", "..", None, InvalidArgument),
        ("explicit", "m", Override("{}", {"f": b""}), InvalidArgument),
    ],
)
async def test_what_is_not_allowed_is_refused(
    mode: str, name: str, override: Override | None, error: type[Exception]
) -> None:
    it = World("m", mode=mode, allow_model_files=False)
    with pytest.raises(error):
        await in_time(it.control.load(name, override))
    if mode != "explicit":
        with pytest.raises(error):
            await in_time(it.control.unload(name))


async def test_who_waits_when_the_scheduler_stops_is_refused() -> None:
    it = World("m")
    pending = asyncio.create_task(it.control.load("m"))
    await asyncio.wait_for(it.loader.begun.get(), LIMIT_S)
    await it.reconciler.tasks.close()
    for call in (pending, it.control.load("m"), it.control.unload("m")):
        with pytest.raises(Unavailable, match="the scheduler is stopping"):
            await asyncio.wait_for(call, LIMIT_S)


async def test_a_repository_that_cannot_be_read_has_no_index() -> None:
    it = World()
    it.repositories.models["m"] = OSError(5, "Input/output error")
    with pytest.raises(Internal, match="a model repository cannot be read: Input/output error"):
        await it.control.found_names()


# ---- polling


async def test_polls_load_what_is_new_or_has_changed_and_unload_what_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = World("same", "changed", "gone", mode="poll", poll_interval_s=0.001, alone=False)
    models = it.repositories.models
    await it.control.start()
    await it.loaded(3)
    models["broken"] = OSError("no disk")
    await until(lambda: "a model repository cannot be read" in caplog.text)
    assert it.states("gone") == [VersionState.READY]
    it.on_demand.lazy = {"lazy"}
    new = {each: found(each) for each in ("same", "new", "lazy")}
    changed = replace(found("changed"), digest=b"e", file_digests={1: b"e"})
    it.repositories.models = {**new, "changed": changed}
    assert await it.loaded(2) == {"changed", "new"}
    await until(lambda: it.states("gone") == [VersionState.UNLOADING])
    await it.reconciler.tasks.close()
    assert set(it.on_demand.deferred) == {"lazy"}
    assert it.on_demand.retained == {"same", "new", "lazy", "changed"}
