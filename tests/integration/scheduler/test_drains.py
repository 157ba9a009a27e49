"""Executors that are drained by a call, over real streams."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError, Status
from tests.support.scheduler.scheduler_world import CONFIG, add_model, numbers_of, request, world
from tests.support.scheduler.several_schedulers import schedulers

# A client that may, and that knows that it is the last one.
CONFIRMED = {"authorized": True, "allow_last": True}


async def test_a_drained_executor_finishes_its_batch_and_gets_no_other(tmp_path: Path) -> None:
    add_model(tmp_path / "models", config=CONFIG)
    async with world(tmp_path / "models") as it:
        drained, gateway = await it.pair(hold=True, drains=True)
        await it.until_state("READY")
        begun = gateway.send(request(1, 2))
        instance, batch = await drained.batch()
        draining = asyncio.ensure_future(it.control("DrainExecutor", name="one", **CONFIRMED))
        await drained.drain_command()
        assert not draining.done()
        drained.send(leaving=pb.Leaving())
        await draining
        next_one = gateway.send(request(3, 4))
        await gateway.arrived()
        other = await it.executor("two")
        assert numbers_of(await next_one) == [6, 8]
        assert drained.batches.empty()
        instance.response(batch)
        assert numbers_of(await begun) == [2, 4]
        assert other.seen == [[[3, 4]]]
        # It has left: it cannot leave again.
        with pytest.raises(RpcError) as left:
            await it.control("DrainExecutor", name="one", **CONFIRMED)
        assert left.value.status is Status.NOT_FOUND


async def test_an_executor_of_an_older_release_is_not_drained(tmp_path: Path) -> None:
    add_model(tmp_path / "models", config=CONFIG)
    async with world(tmp_path / "models") as it:
        await it.pair()
        with pytest.raises(RpcError, match="older release") as refused:
            await it.control("DrainExecutor", name="one", **CONFIRMED)
        assert refused.value.status is Status.UNIMPLEMENTED


async def test_any_scheduler_finds_an_executor_that_has_joined_another(tmp_path: Path) -> None:
    add_model(tmp_path / "models", config=CONFIG)
    async with schedulers(tmp_path / "models") as mesh:
        await mesh.start(drains=True)
        executor = await mesh.worlds["b"].executor("two", drains=True)
        draining = asyncio.ensure_future(
            mesh.worlds["a"].control("DrainExecutor", name="two", **CONFIRMED)
        )
        await executor.drain_command()
        executor.send(leaving=pb.Leaving())
        await draining
        with pytest.raises(RpcError, match="no executor 'none' has joined") as unknown:
            await mesh.worlds["a"].control("DrainExecutor", name="none", **CONFIRMED)
        assert unknown.value.status is Status.NOT_FOUND


async def test_the_last_one_of_any_scheduler_is_not_drained_by_mistake(tmp_path: Path) -> None:
    add_model(tmp_path / "models", config=CONFIG)
    async with schedulers(tmp_path / "models") as mesh:
        await mesh.start(drains=True)
        for world_ in mesh.worlds.values():
            with pytest.raises(RpcError, match="last one of the mesh") as refused:
                await world_.control("DrainExecutor", name="one", authorized=True)
            assert refused.value.status is Status.INVALID_ARGUMENT
            with pytest.raises(RpcError, match="--model-control-mode=explicit") as closed:
                await world_.control("DrainExecutor", name="one", allow_last=True)
            assert closed.value.status is Status.PERMISSION_DENIED


async def test_of_two_drained_at_once_by_two_schedulers_one_remains(tmp_path: Path) -> None:
    """Both executors have joined both schedulers. One decides, whichever is asked."""
    add_model(tmp_path / "models", config=CONFIG)
    async with schedulers(tmp_path / "models") as mesh:
        await mesh.start(name="x", drains=True)
        executors = {"x": mesh.executors["a"]}
        for where in ("b", "a"):
            executors["y"] = await mesh.worlds[where].executor("y", drains=True)
        calls = {
            name: asyncio.ensure_future(
                mesh.worlds[where].control("DrainExecutor", name=name, authorized=True)
            )
            for where, name in (("a", "x"), ("b", "y"))
        }
        await asyncio.wait(calls.values(), return_when=asyncio.FIRST_COMPLETED)
        remains, leaves = sorted(calls, key=lambda name: not calls[name].done())
        with pytest.raises(RpcError, match="last one of") as refused:
            await calls[remains]
        assert refused.value.status is Status.INVALID_ARGUMENT
        await executors[leaves].drain_command()
        executors[leaves].send(leaving=pb.Leaving())
        await calls[leaves]
        # The other scheduler has not heard of it.
        for world_ in mesh.worlds.values():
            with pytest.raises(RpcError, match="last one of the mesh"):
                await world_.control("DrainExecutor", name=remains, authorized=True)
