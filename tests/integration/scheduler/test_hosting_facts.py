"""Who runs what where, as a scheduler says it."""

from __future__ import annotations

from pathlib import Path

from nereid.pb import nereid_pb2 as pb
from tests.support.scheduler.scheduler_world import CONFIG, add_model, request, world


async def test_executors_what_they_host_and_the_scheduler(tmp_path: Path) -> None:
    add_model(tmp_path / "models", config=CONFIG)
    add_model(tmp_path / "models", name="tripler", config=CONFIG)
    async with world(tmp_path / "models") as it:
        empty: pb.FactsResponse = await it.control("Facts")
        assert not empty.executors
        assert [each.name for each in empty.schedulers] == ["scheduler"]
        executor, gateway = await it.pair(hold=True)
        await it.until_state("READY")
        await it.until_state("READY", "tripler")
        facts: pb.FactsResponse = await it.control("Facts")
        (found,) = facts.executors
        assert found.name == executor.name
        assert found.devices
        hosted = {each.model: each for each in found.hosted}
        assert set(hosted) == {"doubler", "tripler"}
        assert all(each.instances >= 1 and not each.busy for each in hosted.values())
        (scheduler,) = facts.schedulers
        assert list(scheduler.owned) == ["doubler", "tripler"]
        assert (scheduler.models, scheduler.gateways, scheduler.reachable) == (2, 1, True)
        assert not facts.configs
        # While it executes it is busy.
        response = gateway.send(request(1, 1))
        instance, batch = await executor.batch()
        facts = await it.control("Facts")
        busy = {each.model: each.busy for each in facts.executors[0].hosted}
        assert busy == {"doubler": 1, "tripler": 0}
        assert not facts.batches
        facts = await it.control("Facts", models=["doubler"])
        (executing,) = facts.batches
        assert (executing.model, executing.rows, executing.reason) == ("doubler", 1, "single")
        assert [each.rows for each in executing.members] == [1]
        assert not (await it.control("Facts", models=["tripler"])).batches
        instance.response(batch)
        await response


async def test_configurations_as_their_files_have_them(tmp_path: Path) -> None:
    add_model(tmp_path / "models", config=CONFIG)
    async with world(tmp_path / "models") as it:
        await it.executor()
        await it.until_state("READY")
        facts: pb.FactsResponse = await it.control("Facts", models=["doubler", "none"])
        (declared,) = facts.configs
        assert (declared.model, declared.version) == ("doubler", 1)
        effective = await it.config()
        assert effective.instance_group[0].name
        assert declared.config.max_batch_size == effective.max_batch_size
        # A name of its own is what the scheduler gives it.
        assert not declared.config.instance_group[0].name


async def test_the_load_of_versions_that_had_requests(tmp_path: Path) -> None:
    add_model(tmp_path / "models", config=CONFIG)
    add_model(tmp_path / "models", name="idle", config=CONFIG)
    async with world(tmp_path / "models") as it:
        await it.executor()
        await it.until_state("READY")
        gateway = await it.gateway()
        for _ in range(2):
            await gateway.send(request(1, 1))
        assert not (await it.control("Facts")).loads
        facts: pb.FactsResponse = await it.control("Facts", with_loads=True)
        (load,) = facts.loads
        assert (load.model, load.version, load.requests, load.failures) == ("doubler", 1, 2, 0)
        assert load.last_30.requests == load.last_5.requests == 2
        assert 0 < load.last_30.p50_us <= load.last_30.p99_us
        assert not load.minutes
        facts = await it.control("Facts", with_loads=True, models=["doubler"])
        assert sum(minute.requests for minute in facts.loads[0].minutes) == 2
