"""Models on demand beside all else that happens to models: clients' loads and unloads, polls,
ensembles that need the same memory, and requests that nobody waits for any more.
"""

import asyncio
import time
from pathlib import Path

import pytest

from nereid.pb import kserve_pb2 as kserve
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError
from nereid_scheduler.core.memory.budgets import Budget
from tests.support.scheduler.doubler_ensembles import ensemble, step
from tests.support.scheduler.ensemble_configs import save_ensemble
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
# What a model is taken for before its first load.
GUESS = 16 << 20
ONE, TWO = (Budget("cpu", GUESS),), (Budget("cpu", 2 * GUESS),)
MEMORY = f"cpu={GUESS}"


def loaded_by(executor: Executor) -> list[str]:
    """The models that it was asked to load since the last time."""
    names = []
    while not executor.commands.empty():
        command = executor.commands.get_nowait()
        if command.WhichOneof("command") == "load":
            names.append(command.load.config.name)
    return names


async def test_a_load_that_nobody_waits_for_any_more_makes_nothing_way(repository: Path) -> None:
    add_model(repository, "other")
    async with world(repository, lazy_loading=True, model_memory_budget=ONE) as it:
        executor, gateway = await it.pair(memory=MEMORY)
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
        executor.hold = True
        held = gateway.send(request(1, 2))
        instance, batch = await executor.batch()
        assert loaded_by(executor) == ["doubler"]
        # One gives up by its deadline, the other one is cancelled.
        hurried = gateway.send(request(1, 2, model="other", deadline=time.monotonic() + 0.1))
        gateway.send(request(1, 2, model="other"))
        gateway.cancel()
        await it.until_index(lambda index: index["other"] == ("LOADING", ""))
        assert error_status_of(await asyncio.wait_for(hurried, LIMIT_S)).code == 4
        await it.until_index(lambda index: index["other"] == NOT_LOADED)
        instance.response(batch)
        assert numbers_of(await asyncio.wait_for(held, LIMIT_S)) == [2, 4]
        executor.hold = False
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
        assert loaded_by(executor) == []
        # The next request that waits has it loaded.
        assert numbers_of(await gateway.ask(1, 2, model="other")) == [2, 4]
        assert loaded_by(executor) == ["other"]


async def test_a_client_unloads_a_model_that_waits_for_memory(repository: Path) -> None:
    add_model(repository, "other")
    rules = {"lazy_loading": True, "model_control_mode": "explicit"}
    async with world(repository, **rules, model_memory_budget=ONE) as it:
        executor, gateway = await it.pair(hold=True, memory=MEMORY)
        held = gateway.send(request(1, 2))
        instance, batch = await executor.batch()
        waiting = [gateway.send(request(1, 2, model="other")) for _ in range(2)]
        await it.until_index(lambda index: index["other"] == ("LOADING", ""))
        await it.unload("other")
        for each in waiting:
            error = error_status_of(await asyncio.wait_for(each, LIMIT_S))
            assert error.message == "Request for unknown model: 'other' is not found"
        instance.response(batch)
        assert numbers_of(await asyncio.wait_for(held, LIMIT_S)) == [2, 4]
        # A client's load is not bound by the budget, and is for good.
        await it.load("other")
        executor.hold = False
        assert numbers_of(await gateway.ask(1, 2, model="other")) == [2, 4]
        assert (await it.index())["other"] == ("READY", "")


async def test_a_client_loads_a_model_that_requests_wait_for(repository: Path) -> None:
    add_model(repository, "other")
    rules = {"lazy_loading": True, "model_control_mode": "explicit"}
    async with world(repository, **rules, model_memory_budget=ONE) as it:
        executor, gateway = await it.pair(hold=True, memory=MEMORY)
        held = gateway.send(request(1, 2))
        instance, batch = await executor.batch()
        waiting = gateway.send(request(1, 2, model="other"))
        await it.until_index(lambda index: index["other"] == ("LOADING", ""))
        await it.load("other")
        other, next_batch = await executor.batch()
        other.response(next_batch)
        assert numbers_of(await asyncio.wait_for(waiting, LIMIT_S)) == [2, 4]
        instance.response(batch)
        assert numbers_of(await asyncio.wait_for(held, LIMIT_S)) == [2, 4]


async def test_the_unload_of_a_client_outlives_the_scheduler(
    repository: Path, tmp_path: Path
) -> None:
    add_model(repository, "other")
    rules = {"lazy_loading": True, "model_control_mode": "explicit"}
    rules |= {"state_directory": str(tmp_path / "state")}
    async with world(repository, **rules) as it:
        # It has never been in memory.
        await it.unload("other")
    async with world(repository, **rules) as it:
        _, gateway = await it.pair()
        assert error_status_of(await gateway.ask(1, 2, model="other")).code == 5
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]


async def test_a_poll_loads_a_changed_model_where_it_is(repository: Path) -> None:
    add_model(repository, "other")
    rules = {"lazy_loading": True, "model_control_mode": "poll", "repository_poll_secs": 0.05}
    async with world(repository, **rules, model_memory_budget=TWO) as it:
        one = await it.executor("one", memory=MEMORY)
        two, gateway = await it.pair("two", memory=MEMORY)
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
        assert loaded_by(one) == ["doubler"]
        (repository / "doubler" / "1" / "model.onnx").write_bytes(b"changed")
        (repository / "other" / "1" / "model.onnx").write_bytes(b"changed")
        again = (await one.command()).load
        assert again.config.name == "doubler"
        add_model(repository, "third")
        # By the next poll the one before has been acted on.
        await it.until_index(lambda index: index.get("third") == NOT_LOADED)
        assert numbers_of(await gateway.ask(1, 2, model="third")) == [2, 4]
        assert loaded_by(two) == []
        assert loaded_by(one) == ["third"]
        assert (await it.index())["other"] == NOT_LOADED


async def test_ensembles_that_need_the_same_memory_take_turns(repository: Path) -> None:
    """Each of them has half of its models in memory, and together they have all of it."""
    for name in ("a", "b", "c", "d"):
        add_model(repository, name)
    ab, cd = (
        ensemble(step(one, "INPUT0", "m"), step(other, "m", "OUTPUT0"))
        for one, other in (("a", "b"), ("c", "d"))
    )
    save_ensemble(repository, "ab", ab)
    save_ensemble(repository, "cd", cd)
    save_ensemble(repository, "outer", ensemble(step("ab", "INPUT0", "OUTPUT0")))
    async with world(repository, lazy_loading=True, model_memory_budget=TWO) as it:
        _, gateway = await it.pair(memory=MEMORY)
        for name in ("a", "c"):
            assert numbers_of(await gateway.ask(1, 2, model=name)) == [2, 4]
        both = [gateway.send(request(1, 2, model=name)) for name in ("ab", "cd", "outer", "cd")]
        responses = await asyncio.wait_for(asyncio.gather(*both), LIMIT_S)
        assert [*map(numbers_of, responses)] == [[4, 8]] * 4


async def test_an_ensemble_that_does_not_fit_is_refused_at_once(repository: Path) -> None:
    add_model(repository, "second")
    pair = ensemble(step("doubler", "INPUT0", "m"), step("second", "m", "OUTPUT0"))
    save_ensemble(repository, "pair", pair)
    async with world(repository, lazy_loading=True, model_memory_budget=ONE) as it:
        _, gateway = await it.pair(memory=MEMORY)
        error = error_status_of(await gateway.ask(1, 2, model="pair"))
        text = "the models of ensemble 'pair' do not fit the memory budget together"
        assert (error.code, error.message) == (14, text)
        # Its models by themselves do.
        for name in ("second", "doubler"):
            assert numbers_of(await gateway.ask(1, 2, model=name)) == [2, 4]


async def test_a_step_that_failed_before_fails_no_ensemble_after(repository: Path) -> None:
    save_ensemble(repository, "single", ensemble(step("doubler", "INPUT0", "OUTPUT0")))
    async with world(repository, lazy_loading=True) as it:
        executor, gateway = await it.pair(refuse="no memory")
        assert "no memory" in error_status_of(await gateway.ask(1, 2)).message
        executor.refuse = ""
        assert numbers_of(await gateway.ask(1, 2, model="single")) == [2, 4]
        assert (await it.index())["doubler"] == ("READY", "")


async def test_what_failed_is_tried_again_where_an_executor_joins(repository: Path) -> None:
    async with world(repository, lazy_loading=True) as it:
        executor, gateway = await it.pair(refuse="no such device")
        assert "no such device" in error_status_of(await gateway.ask(1, 2)).message
        assert (await it.index())["doubler"][0] == "UNAVAILABLE"
        await executor.die()
        await it.executor("two")
        await it.until_index(lambda index: index["doubler"] == NOT_LOADED)
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]


async def test_each_waiting_request_gets_the_error_of_one_load(repository: Path) -> None:
    async with world(repository, lazy_loading=True) as it:
        executor, gateway = await it.pair(lazy=True)
        waiting = [gateway.send(request(1, 2)) for _ in range(3)]
        load = (await executor.command()).load
        executor.send(
            instance_failed=pb.InstanceFailed(
                instance=load.instance, error=pb.ErrorStatus(code=13, message="no weights")
            )
        )
        for response in await asyncio.wait_for(asyncio.gather(*waiting), LIMIT_S):
            assert "no weights" in error_status_of(response).message
        # Those that come now do not have it loaded again.
        assert "no weights" in error_status_of(await gateway.ask(1, 2)).message
        assert loaded_by(executor) == []


async def test_clients_see_a_model_that_is_not_in_memory(repository: Path) -> None:
    """Its statistics begin at zero, and it can be traced."""
    add_model(repository, "many", CONFIG + "version_policy { all { } }", "1 3")
    async with world(repository, lazy_loading=True, strict_readiness=True) as it:
        executor = await it.executor()
        stats = kserve.ModelStatisticsRequest(name="many")
        reply = await it.control("ModelStatistics", stats)
        assert [(each.name, each.version) for each in reply.model_stats] == [
            ("many", "1"),
            ("many", "3"),
        ]
        assert not any(each.inference_count for each in reply.model_stats)
        stats.version = "2"
        with pytest.raises(RpcError, match="requested model 'many' is not available"):
            await it.control("ModelStatistics", stats)
        trace = kserve.TraceSettingRequest(model_name="many")
        trace.settings["trace_rate"].value.append("7")
        set_to = await it.control("TraceSetting", trace)
        assert list(set_to.settings["trace_rate"].value) == ["7"]
        assert await it.server_ready()
        assert loaded_by(executor) == []
