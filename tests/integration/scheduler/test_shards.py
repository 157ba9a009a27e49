"""Several schedulers over real sockets: which models each has, and how they move."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.shards.ownership import owner_of
from tests.support.scheduler.scheduler_world import (
    add_model,
    error_status_of,
    numbers_of,
    request,
)
from tests.support.scheduler.several_schedulers import is_moved, schedulers


def _names_of(owner: str, members: str, count: int) -> list[str]:
    names = (f"m{number}" for number in range(1000))
    return [name for name in names if owner_of(name, members) == owner][:count]


async def test_each_model_is_loaded_by_its_owner_alone_and_named_to_gateways(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "models"
    models = {owner: _names_of(owner, "abc", 2) for owner in "abc"}
    for each in models.values():
        for name in each:
            add_model(repository, name)
    async with schedulers(repository, "abc") as mesh:
        await mesh.start()
        await mesh.until_ready(**{name: owner for owner, each in models.items() for name in each})
        for owner, names in models.items():
            notice = await mesh.gateways[owner].until_named(*names)
            assert (notice.scheduler, notice.leaving) == (owner, False)
            assert notice.epoch > 0
            loads = [(await mesh.executors[owner].command()).load for _ in names]
            assert {load.config.name for load in loads} == set(names)
            assert {load.scheduler for load in loads} == {owner}
            assert all(load.epoch > 0 for load in loads)
            assert mesh.executors[owner].commands.empty()
            assert numbers_of(await mesh.gateways[owner].ask(1, 2, model=names[0])) == [2, 4]
        # One that another scheduler has; one that nobody has.
        other = mesh.gateways["a"]
        assert is_moved(await other.ask(1, 2, model=models["b"][0]))
        unknown = error_status_of(await other.ask(1, 2, model="unknown"))
        assert "unknown model: 'unknown' is not found" in unknown.message


async def test_what_a_lost_scheduler_had_is_taken_over_and_handed_back(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    (own,), (others,) = _names_of("a", "ab", 1), _names_of("b", "ab", 1)
    add_model(repository, own)
    add_model(repository, others)
    async with schedulers(repository) as mesh:
        await mesh.start(hold=True)
        await mesh.until_ready(**{own: "a", others: "b"})
        gateway, executor = mesh.gateways["a"], mesh.executors["a"]
        first = await gateway.until_named(own)
        await mesh.kill("b")
        taken = await gateway.until_named(own, others)
        assert taken.epoch > first.epoch
        await mesh.until_ready(**{own: "a", others: "a"})
        # One executes and one waits when the owner is back.
        begun = gateway.send(request(1, 2, model=others))
        instance, batch = await executor.batch()
        queued = gateway.send(request(3, 4, model=others))
        await gateway.arrived()
        await mesh.start("b")
        back = await gateway.until_named(own)
        assert back.epoch > taken.epoch
        assert is_moved(await asyncio.wait_for(queued, 10))
        assert not begun.done()
        instance.response(batch)
        assert numbers_of(await begun) == [2, 4]
        unloads: list[pb.UnloadInstance] = []
        while not unloads:
            command = await executor.command()
            unloads += [command.unload] if command.HasField("unload") else []
        assert unloads[0].instance == instance.load.instance
        assert unloads[0].keep
        await mesh.until_ready(**{own: "a", others: "b"})
        assert is_moved(await gateway.ask(1, 2, model=others))


async def test_a_scheduler_that_drains_hands_its_models_over_first(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    (others,) = _names_of("b", "ab", 1)
    add_model(repository, others)
    async with schedulers(repository) as mesh:
        await mesh.start(hold=True)
        await mesh.until_ready(**{others: "b"})
        gateway, executor = mesh.gateways["b"], mesh.executors["b"]
        begun = gateway.send(request(1, 2, model=others))
        instance, batch = await executor.batch()
        queued = gateway.send(request(3, 4, model=others))
        await gateway.arrived()
        draining = asyncio.ensure_future(mesh.drain("b"))
        assert (await gateway.until_named()).leaving
        assert is_moved(await asyncio.wait_for(queued, 10))
        # It is stopping, and the request does not fail.
        assert is_moved(await gateway.ask(5, 6, model=others))
        assert others in (await mesh.gateways["a"].until_named(others)).models
        assert not draining.done()
        instance.response(batch)
        assert numbers_of(await begun) == [2, 4]
        await asyncio.wait_for(draining, 10)
        await mesh.until_ready(**{others: "a"})
