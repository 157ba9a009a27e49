"""Changes of repositories in poll mode, over real sockets."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from nereid.pb import kserve_pb2 as kserve
from nereid.pb import nereid_pb2 as pb
from tests.integration.scheduler.test_namespaces import ENSEMBLE
from tests.support.scheduler.scheduler_world import (
    LIMIT_S,
    World,
    add_model,
    numbers_of,
    world,
)

POLLED = {"model_control_mode": "poll", "repository_poll_secs": 0.05}


async def is_ready(it: World) -> bool:
    return bool((await it.control("ServerReady", kserve.ServerReadyRequest())).ready)


async def test_a_model_that_appears_in_a_second_repository_is_served_from_neither(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    add_model(one, "m")
    two.mkdir()
    async with world(one, two, **POLLED) as it:
        await it.executor()
        await it.until_state("READY", "m")
        add_model(two, "m")
        await it.until_state("UNAVAILABLE", "m")
        assert (await it.index())["m"][1] in (
            "unloaded",
            "model appears in two or more repositories",
        )
        shutil.rmtree(two / "m")
        await it.until_state("READY", "m")


async def test_an_ensemble_follows_a_model_of_its_steps_to_another_repository(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for repository in (one, two):
        add_model(repository, "m")
        add_model(repository, f"e_{repository.name}", ENSEMBLE.format("m", ""))
    async with world(one, two, model_namespacing=True, **POLLED) as it:
        await it.executor()
        gateway = await it.gateway()
        for name in ("e_one", "e_two"):
            await it.until_state("READY", name)
        namespaces = {one: str(one), two: str(two)}

        def step_of(name: str) -> str:
            (served,) = it.service._models.catalogue.running(name)
            return served.draft.ensemble_scheduling.step[0].model_namespace

        assert step_of(f"{one}::e_one") == namespaces[one]
        shutil.move(one / "m", tmp_path / "away")
        await it.until_index(lambda _: step_of(f"{one}::e_one") == namespaces[two])
        await it.until_state("READY", "e_one")
        assert numbers_of(await gateway.ask(1, 2, model="e_one")) == [2, 4]
        assert numbers_of(await gateway.ask(1, 2, model="e_two")) == [2, 4]
        shutil.move(tmp_path / "away", one / "m")
        await it.until_index(lambda _: step_of(f"{one}::e_one") == namespaces[one])
        await it.until_state("READY", "e_one")
        assert numbers_of(await gateway.ask(1, 2, model="e_one")) == [2, 4]


async def test_a_version_that_comes_makes_nothing_less_ready(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    add_model(repository)
    async with world(repository, **POLLED) as it:
        executor = await it.executor(lazy=True)
        executor.load((await asyncio.wait_for(executor.command(), LIMIT_S)).load)
        await it.until_state("READY")
        gateway = await it.gateway()
        shutil.copytree(repository / "doubler" / "1", repository / "doubler" / "2")
        new = (await asyncio.wait_for(executor.command(), LIMIT_S)).load
        assert new.version == 2
        assert await is_ready(it)
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
        executor.load(new)
        unloaded = (await asyncio.wait_for(executor.command(), LIMIT_S)).unload
        assert unloaded.instance
        assert await is_ready(it)


async def test_a_model_whose_loads_write_beside_it_is_loaded_once_more_and_then_left_alone(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "models"
    add_model(repository)
    version = repository / "doubler" / "1"
    async with world(repository, **POLLED) as it:
        executor = await it.executor(lazy=True)

        async def next_load() -> pb.LoadInstance:
            while not (command := await executor.command()).HasField("load"):
                pass
            return command.load

        async def load(*written: str) -> None:
            """Load what is asked for next, during which these files change."""
            load = await next_load()
            assert load.config.name == "doubler"
            for name in written:
                (version / name).write_text(str(load.instance))
            executor.load(load)

        async def poll(marker: str) -> None:
            """Until all that has changed is seen: models are asked for by their names' order."""
            add_model(repository, marker)
            load = await next_load()
            assert load.config.name == marker
            executor.load(load)

        await load("cache")
        await load("cache")
        await it.until_state("READY", "doubler")
        await poll("m1")
        # A user changes something, and once more while that is loaded.
        (version / "weights").write_text("1")
        await load("cache", "weights")
        await load("cache")
        await it.until_state("READY", "doubler")
        await poll("m2")
