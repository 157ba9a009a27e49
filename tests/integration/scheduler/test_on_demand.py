"""Models that requests load, and that make way for others, with executors that load when the test
says so.
"""

import asyncio
import time
from pathlib import Path

import pytest

from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.memory.budgets import Budget
from nereid_scheduler.settings import Settings
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    LIMIT_S,
    Executor,
    add_model,
    error_status_of,
    numbers_of,
    request,
    world,
)

NOT_LOADED = ("READY", "not in memory; the next request loads it")
SIZE = 1 << 20
MEMORY = f"cpu={SIZE}"
# Before its first load a model is taken for 16 MiB.
TWO = (Budget("cpu", 18 * SIZE),)


async def next_load(executor: Executor) -> pb.LoadInstance:
    """The next load that an executor is asked for; unloads are done by themselves."""
    while True:
        command = await executor.command()
        if command.WhichOneof("command") == "load":
            return command.load


def models(repository: Path, *names: str, config: str = CONFIG) -> None:
    for name in names:
        add_model(repository, name, config)


async def test_the_first_request_loads_and_others_wait_with_it(repository: Path) -> None:
    async with world(repository, lazy_loading=True) as it:
        executor, gateway = await it.pair(lazy=True)
        assert (await it.index())["doubler"] == NOT_LOADED
        assert await it.model_ready()
        first, second = gateway.send(request(1, 2)), gateway.send(request(3, 4))
        hurried = gateway.send(request(5, 6, deadline=time.monotonic() + 0.05))
        load = await next_load(executor)
        assert (await it.index())["doubler"] == ("LOADING", "")
        # Its deadline passes; the load goes on.
        assert error_status_of(await asyncio.wait_for(hurried, LIMIT_S)).code == 4
        executor.load(load)
        responses = await asyncio.wait_for(asyncio.gather(first, second), LIMIT_S)
        assert [*map(numbers_of, responses)] == [[2, 4], [6, 8]]
        assert (await it.index())["doubler"] == ("READY", "")


async def test_metadata_loads_as_clients_ask_for_it_first(repository: Path) -> None:
    async with world(repository, lazy_loading=True) as it:
        await it.executor()
        reply = await it.control("ModelMetadata", name="doubler")
        assert list(reply.versions) == ["1"]
        assert (await it.index())["doubler"] == ("READY", "")


async def test_the_least_recently_used_idle_model_makes_way(repository: Path) -> None:
    models(repository, "a", "b", "c")
    budget = (Budget("cpu", 18 * SIZE),)
    async with world(repository, lazy_loading=True, model_memory_budget=budget) as it:
        executor, gateway = await it.pair(memory=f"cpu={8 * SIZE}")
        # Until they are measured they are taken for larger than they are: one at a time.
        for name in ("c", "a", "b", "a"):
            assert numbers_of(await gateway.ask(1, 2, model=name)) == [2, 4]
        # Known by now: both fit.
        assert numbers_of(await gateway.ask(1, 2, model="b")) == [2, 4]
        index = await it.index()
        assert (index["a"], index["b"]) == (("READY", ""), ("READY", ""))
        executor.hold = True
        held = gateway.send(request(1, 2, model="a"))
        instance, batch = await executor.batch()
        # "a" was used longer ago, but is in use.
        waiting = gateway.send(request(1, 2, model="c"))
        await it.until_index(lambda index: index["b"] == NOT_LOADED)
        assert (await it.index())["a"] == ("READY", "")
        other, next_batch = await executor.batch()
        other.response(next_batch)
        assert numbers_of(await asyncio.wait_for(waiting, LIMIT_S)) == [2, 4]
        instance.response(batch)
        assert numbers_of(await asyncio.wait_for(held, LIMIT_S)) == [2, 4]


async def test_executors_learn_what_is_left_for_instances_that_they_keep(repository: Path) -> None:
    models(repository, "a")
    async with world(repository, lazy_loading=True, model_memory_budget=TWO) as it:
        executor, gateway = await it.pair(lazy=True, memory=f"cpu={8 * SIZE}")
        # Each is taken for 16 MiB, so that the one before it makes way.
        for name in ("a", "doubler"):
            asked = gateway.send(request(1, 2, model=name))
            load = await next_load(executor)
            assert dict(load.kept_bytes) == {"cpu": 2 * SIZE}
            executor.load(load)
            assert numbers_of(await asyncio.wait_for(asked, LIMIT_S)) == [2, 4]
    async with world(repository, lazy_loading=True) as it:
        executor = await it.executor(lazy=True)
        asked = (await it.gateway()).send(request(1, 2))
        load = await next_load(executor)
        assert not load.kept_bytes
        executor.load(load)
        await asyncio.wait_for(asked, LIMIT_S)


async def test_a_model_that_fits_nowhere_is_refused_with_the_figures(repository: Path) -> None:
    budget = (Budget("cpu", SIZE),)
    async with world(repository, lazy_loading=True, model_memory_budget=budget) as it:
        _, gateway = await it.pair()
        status = error_status_of(await gateway.ask(1, 2))
        assert status.code == 14
        assert status.message == (
            f"model 'doubler' cannot be loaded: it needs {16 * SIZE} bytes of cpu on executor"
            f" 'one', whose budget is {SIZE}"
        )
        assert (await it.index())["doubler"][0] == "UNAVAILABLE"
        assert not await it.model_ready()


async def test_measured_sizes_outlive_the_scheduler(repository: Path, tmp_path: Path) -> None:
    state = {"state_directory": str(tmp_path / "state"), "lazy_loading": True}
    async with world(repository, **state, model_memory_budget=TWO) as it:
        _, gateway = await it.pair(memory=MEMORY)
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
    # What a guess would refuse.
    async with world(repository, **state, model_memory_budget=(Budget("cpu", 2 * SIZE),)) as it:
        _, gateway = await it.pair(memory=MEMORY)
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]


async def test_another_executor_loads_what_a_lost_one_had(repository: Path) -> None:
    async with world(repository, lazy_loading=True, model_memory_budget=TWO) as it:
        one = await it.executor("one", hold=True, memory=MEMORY)
        two, gateway = await it.pair("two", memory=MEMORY)
        waiting = gateway.send(request(1, 2))
        await one.batch()
        assert two.commands.empty()
        await one.die()
        assert numbers_of(await asyncio.wait_for(waiting, LIMIT_S)) == [2, 4]
        assert (await it.index())["doubler"] == ("READY", "")
        # One that nobody waits for is loaded by its next request.
        await two.die()
        await it.until_index(lambda index: index["doubler"] == NOT_LOADED)
        await it.executor("three", memory=MEMORY)
        assert numbers_of(await gateway.ask(3, 4)) == [6, 8]


async def test_models_that_say_so_are_loaded_as_ever(repository: Path) -> None:
    says = 'parameters { key: "lazy_loading" value { string_value: "%s" } }'
    models(repository, "eager", config=CONFIG + says % "false")
    models(repository, "unclear", config=CONFIG + says % "perhaps")
    async with world(repository, lazy_loading=True) as it:
        await it.executor()
        await it.until_state("READY", "eager")
        index = await it.index()
        assert index["eager"] == ("READY", "")
        assert index["unclear"] == NOT_LOADED


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"model_memory_budget": TWO}, "--model-memory-budget requires --lazy-loading as well"),
        (
            {"lazy_loading": True, "scheduler_peers": "a:1,b:1"},
            "--lazy-loading: not with several schedulers (--scheduler-peers)",
        ),
    ],
    ids=["budget", "peers"],
)
def test_settings(repository: Path, settings: dict[str, object], error: str) -> None:
    made = Settings(model_repository=(str(repository),), **settings)  # type: ignore[arg-type]
    assert error in made.errors()
