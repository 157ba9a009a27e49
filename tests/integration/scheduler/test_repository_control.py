"""Loads and unloads over real sockets, with an executor that loads when the test says so."""

import asyncio
from pathlib import Path

import pytest

from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError, Status
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    add_model,
    error_status_of,
    numbers_of,
    request,
    world,
)


async def test_loads_and_unloads_of_one_model_are_serialized(repository: Path) -> None:
    async with world(repository, model_control_mode="explicit") as it:
        executor, gateway = await it.pair(lazy=True)
        first = asyncio.create_task(it.load())
        command = (await executor.command()).load
        second, end = asyncio.create_task(it.load()), asyncio.create_task(it.unload())
        waiting = gateway.send(request(1, 2))
        await gateway.arrived()
        assert not any(each.done() for each in (first, second, end, waiting))
        executor.load(command)
        await asyncio.gather(first, second, end)
        await it.until_state("UNAVAILABLE")
        assert (await it.index())["doubler"] == ("UNAVAILABLE", "unloaded")


async def test_the_old_model_serves_until_the_new_one_is_up(repository: Path) -> None:
    async with world(repository, model_control_mode="explicit", load_model=("*",)) as it:
        executor, gateway = await it.pair(lazy=True)
        executor.load((await executor.command()).load)
        await it.until_state("READY")
        (repository / "doubler" / "1" / "model.onnx").write_bytes(b"changed")
        reload = asyncio.create_task(it.load())
        command = (await executor.command()).load
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
        assert (await it.index())["doubler"] == ("READY", "")
        # The executor dies over the new version: another one gets both.
        await executor.die()
        again = await it.executor("two", lazy=True)
        loads = [(await again.command()).load for _ in range(2)]
        assert command.instance not in {each.instance for each in loads}
        assert not reload.done()
        for each in loads:
            again.load(each)
        await reload
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]


async def test_a_failed_load_is_retried_by_the_retry_count(repository: Path) -> None:
    rules = {"model_control_mode": "explicit", "model_load_retry_count": 2}
    async with world(repository, **rules) as it:
        executor = await it.executor(refuse="broken")
        with pytest.raises(RpcError) as refused:
            await it.load()
        reason = "version 1 is at UNAVAILABLE state: Internal: broken;"
        text = f"load failed for model 'doubler': {reason}\n"
        assert (refused.value.status, refused.value.message) == (Status.INVALID_ARGUMENT, text)
        attempts = [executor.commands.get_nowait().HasField("load") for _ in range(3)]
        assert all(attempts)
        assert executor.commands.empty()


async def test_a_load_without_executors_fails_in_time_and_succeeds_when_one_joins(
    repository: Path,
) -> None:
    rules = {"model_control_mode": "explicit", "no_executor_timeout_secs": 0.05}
    async with world(repository, **rules) as it:
        with pytest.raises(RpcError, match="no executor has tried to load it"):
            await it.load()
        assert (await it.index())["doubler"] == ("LOADING", "")
        await it.executor()
        await it.until_state("READY")
        await it.load()
        gateway = await it.gateway()
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
        (repository / "doubler" / "config.pbtxt").write_text(CONFIG.replace("4", "-4", 1))
        with pytest.raises(RpcError, match="must be non-negative"):
            await it.load()
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
        await it.unload()
        assert "has no available versions" in error_status_of(await gateway.ask(1, 2)).message


async def test_instances_that_cannot_all_be_added_are_unloaded_again(repository: Path) -> None:
    async with world(repository, model_control_mode="explicit", load_model=("*",)) as it:
        executor = await it.executor(lazy=True)
        executor.load((await executor.command()).load)
        await it.until_state("READY")
        config = repository / "doubler" / "config.pbtxt"
        config.write_text(CONFIG.replace("count: 1", "count: 3"))
        reload = asyncio.create_task(it.load())
        added, broken = [(await executor.command()).load for _ in range(2)]
        executor.load(added)
        error = pb.ErrorStatus(code=13, message="broken")
        executor.send(instance_failed=pb.InstanceFailed(instance=broken.instance, error=error))
        with pytest.raises(RpcError) as refused:
            await reload
        reason = "version 1 is at READY state: Internal: broken;"
        assert refused.value.message == f"load failed for model 'doubler': {reason}\n"
        assert (await executor.command()).unload.instance == added.instance
        assert (await it.index())["doubler"] == ("READY", "Internal: broken")
        shown = await it.config()
        assert [group.count for group in shown.instance_group] == [1]
        executor.lazy = False
        await it.load()
        assert (await it.index())["doubler"] == ("READY", "")
        gateway = await it.gateway()
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]


async def test_a_model_without_a_version_is_known_and_not_served(repository: Path) -> None:
    add_model(repository, "none", CONFIG + "version_policy { specific { versions: 3 } }")
    async with world(repository, model_control_mode="explicit") as it:
        _, gateway = await it.pair()
        with pytest.raises(RpcError, match="at least one version must be available"):
            await it.load("none")
        assert (await it.index())["none"][0] == "UNAVAILABLE"
        assert error_status_of(await gateway.ask(1, 2, model="none")).code == Status.NOT_FOUND
