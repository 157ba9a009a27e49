"""Who runs what where, as a scheduler says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nereid.core.permitted_models import ALL_NAMES, PermittedModels
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError
from tests.support.scheduler.doubler_ensembles import add_ensembles
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


async def test_what_has_happened_and_who_asked_for_it(tmp_path: Path) -> None:
    add_model(tmp_path / "models", config=CONFIG)
    async with world(tmp_path / "models", model_control_mode="explicit") as it:
        executor = await it.executor()
        requester = kserve_pb2.RepositoryModelLoadRequest.FromString(
            PermittedModels("alice", ALL_NAMES).entry()
        ).parameters
        await it.control("RepositoryModelLoad", model_name="doubler", parameters=requester)
        await it.control("RepositoryModelUnload", model_name="doubler", parameters=requester)
        with pytest.raises(RpcError):
            await it.control("RepositoryModelLoad", model_name="missing")
        await executor.die()
        facts: pb.FactsResponse = await it.control("Facts", events=100)
        seen = [(event.what, event.model, event.principal) for event in facts.events]
        assert seen == [
            ("scheduler started", "", ""),
            ("executor joined", "", ""),
            ("load", "doubler", "alice"),
            ("unload", "doubler", "alice"),
            ("load failed", "missing", ""),
            ("executor lost", "", ""),
        ]
        load, unload, failed = facts.events[2:5]
        assert load.cause == "a client loads it"
        assert load.duration_us
        assert unload.cause == "a client unloads it, or it was deleted"
        assert "missing" in failed.detail
        assert facts.schedulers[0].events == len(facts.events)
        assert facts.schedulers[0].host_name
        # Only the last of them, if fewer are wanted.
        facts = await it.control("Facts", events=1)
        assert [event.number for event in facts.events] == [len(seen)]
        assert not (await it.control("Facts")).events


async def test_the_times_of_an_ensembles_steps(tmp_path: Path) -> None:
    add_ensembles(tmp_path / "models")
    async with world(tmp_path / "models") as it:
        await it.executor()
        await it.until_state("READY", "fourfold")
        gateway = await it.gateway()
        await gateway.ask(1, 1, model="fourfold")
        await gateway.ask(1, -1, model="fourfold")
        # Requests of others to a step's model are not the ensemble's.
        await gateway.ask(1, 1)
        facts: pb.FactsResponse = await it.control("Facts", with_loads=True, models=["fourfold"])
        (load,) = [load for load in facts.loads if load.model == "fourfold"]
        first, second = load.steps
        assert [step.index for step in load.steps] == [0, 1]
        assert (first.last_30.requests, first.last_30.failures) == (1, 1)
        assert (second.last_30.requests, second.last_30.failures) == (1, 0)
        assert 0 < first.last_30.p50_us <= first.last_30.p99_us
        assert first.mean_us > 0


async def test_a_models_own_error_responses_are_failures(tmp_path: Path) -> None:
    add_model(tmp_path / "models", config=CONFIG)
    async with world(tmp_path / "models") as it:
        await it.executor()
        await it.until_state("READY")
        gateway = await it.gateway()
        for numbers in ((1, 1), (1, -2), (1, -1)):
            await gateway.ask(*numbers)
        facts: pb.FactsResponse = await it.control("Facts", with_loads=True)
        (load,) = facts.loads
        assert (load.requests, load.failures) == (1, 2)
        assert (load.last_5.requests, load.last_5.failures) == (1, 2)
        # Counters with Triton's names count as Triton does.
        counts = (await it.statistics()).inference_stats
        assert (counts.success.count, counts.fail.count) == (2, 1)
        page = await it.metrics()
        assert 'nereid_error_responses_total{model="doubler",version="1"} 1' in page
