"""Several schedulers over real sockets: which models each has, and how they move."""

import asyncio
import math
from pathlib import Path

import pytest

from nereid.config.recovery import RecoveryTimes
from nereid.core.callable_models import ALL_CALLABLE
from nereid.core.errors import PermissionDenied
from nereid.mesh_routing.access import dial_scheduler
from nereid.pb import kserve_pb2 as pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError
from nereid_scheduler.control.shards.members.ownership import owner_of
from nereid_scheduler.control.state.store import StateError
from tests.support.scheduler.scheduler_world import (
    LIMIT_S,
    add_model,
    error_status_of,
    numbers_of,
    request,
)
from tests.support.scheduler.several_schedulers import is_moved, schedulers
from tests.support.waiting import until

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling { step [ {
  model_name: "STEP" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
} ] }
"""
OVERRIDE = {
    "backend": "onnxruntime",
    "max_batch_size": 7,
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [2]}],
}


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
        # What moves from one to the other keeps nobody from being ready.
        assert [await each.server_ready() for each in mesh.worlds.values()] == [True, True]
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


async def test_control_calls_may_go_to_any_scheduler(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    (own,), (others,) = _names_of("a", "ab", 1), _names_of("b", "ab", 1)
    add_model(repository, own)
    add_model(repository, others)
    for model in (own, others):
        (repository / model / "text.json").write_text("{}")
    add_model(repository, "broken", 'backend: "none such" max_batch_size: -3')
    async with schedulers(repository, strict_readiness=False) as mesh:
        await mesh.start()
        await mesh.until_ready(**{own: "a", others: "b"})
        usage = pb.DeviceUsage(cpu_utilization=0.5, memory_total_bytes=4, memory_used_bytes=3)
        # Each reports to one scheduler.
        for each in mesh.executors.values():
            each.send(usage=usage)
        for where in mesh.worlds.values():
            numbers_of(await mesh.gateways[mesh.owner(own)].ask(1, 2, model=own))
            for model in (own, others):
                assert await where.model_ready(model)
                assert (await where.config(model)).name == model
                assert (await where.statistics(model)).name == model
                assert (await where.control("ModelText", name=model)).config.name == model
            assert (await where.control("ModelText")).names == [own, others]
            every = await where.control("ModelStatistics")
            assert {each.name for each in every.model_stats} == {own, others}
            index = await where.index()
            assert {model: state for model, (state, _) in index.items()} == {
                own: "READY", others: "READY", "broken": "UNAVAILABLE",
            }  # fmt: skip
            assert await where.server_ready()
            with pytest.raises(RpcError, match="unknown model"):
                await where.control("ModelMetadata", name="x")
            series = (await where.metrics()).splitlines()
            for model in (own, others):
                label = f'nv_inference_request_success{{model="{model}",version="1"}} '
                assert sum(line.startswith(label) for line in series) == 1
            assert "# TYPE nereid_links gauge" in series
            assert 'nereid_links{peer="executor"} 2' in series
            assert [line for line in series if line.startswith("nv_cpu_memory_total")] == [
                "nv_cpu_memory_total_bytes 4"
            ]
        changed = pb2.LogSettingsRequest()
        changed.settings["log_verbose_level"].uint32_param = 1
        traced = pb2.TraceSettingRequest(model_name=others)
        traced.settings["trace_count"].value.append("7")
        await mesh.worlds["a"].control("LogSettings", changed)
        await mesh.worlds["a"].control("TraceSetting", traced)
        for where in mesh.worlds.values():
            settings = await where.control("TraceSetting", model_name=others)
            assert settings.settings["trace_count"].value == ["7"]
            settings = await where.service._mesh_settings.trace(others, {})
            assert settings["trace_count"] == ["7"]
        changed.settings["log_verbose_level"].uint32_param = 0
        await mesh.worlds["b"].control("LogSettings", changed)


async def test_a_load_request_goes_to_the_owner_of_what_the_ensemble_composes(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "models"
    (step,) = _names_of("b", "ab", 1)
    # Its name makes the group's key, and so moves the step to the other scheduler.
    ensemble = next(f"e{n}" for n in range(100) if owner_of(f"e{n}", "ab") == "a")
    add_model(repository, step)
    async with schedulers(repository, model_control_mode="explicit") as mesh:
        await mesh.start()
        where = mesh.worlds["b"]
        await mesh.worlds["a"].load(step)
        await mesh.until_ready(**{step: "b"})
        add_model(repository, ensemble, ENSEMBLE.replace("STEP", step))
        await where.load(ensemble)
        await mesh.until_ready(**{step: "a", ensemble: "a"})
        assert numbers_of(await mesh.gateways["a"].ask(1, 2, model=ensemble)) == [2, 4]
        await where.unload(ensemble)
        # What is loaded is known to the others: they load the same when this one is lost.
        await mesh.gateways["b"].until_named()
        await mesh.kill("a")
        await mesh.until_ready(**{step: "b"})
        assert (await where.index())[ensemble] == ("", "")


async def test_a_takeover_loads_what_clients_had_loaded_with_their_overrides(
    tmp_path: Path,
) -> None:
    repository, state = tmp_path / "models", tmp_path / "state"
    (name,) = _names_of("b", "ab", 1)
    add_model(repository, name)
    async with schedulers(
        repository, model_control_mode="explicit", state_directory=str(state)
    ) as mesh:
        await mesh.start()
        where = mesh.worlds["a"]
        await where.load(name, OVERRIDE)
        await mesh.kill("b")
        await mesh.until_ready(**{name: "a"})
        assert (await mesh.executors["a"].command()).load.config.max_batch_size == 7
        # The new owner's changes are recorded over the other one's.
        await where.load(name, OVERRIDE | {"max_batch_size": 5})
        await mesh.start("b")
        await mesh.until_ready(**{name: "b"})
        assert (await mesh.executors["b"].command()).load.config.max_batch_size == 5


async def test_a_takeover_waits_for_a_store_that_fails_and_requests_wait_for_the_takeover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, state = tmp_path / "models", tmp_path / "state"
    kept, unloaded = _names_of("b", "ab", 2)
    add_model(repository, kept)
    add_model(repository, unloaded)
    async with schedulers(
        repository, model_control_mode="explicit", state_directory=str(state)
    ) as mesh:
        await mesh.start()
        where = mesh.worlds["a"]
        await where.load(unloaded)
        await where.load(kept, OVERRIDE)
        await mesh.gateways["b"].until_named(kept, unloaded)
        reads = asyncio.Queue[None]()
        recorder, records = (
            where.service._environment.state._recorder,
            where.service._environment.state.models,
        )
        assert recorder is not None
        assert records is not None
        records._retry_s = 0.01

        async def fail() -> dict[str, bytes]:
            reads.put_nowait(None)
            raise StateError("no connection")

        with monkeypatch.context() as failing:
            failing.setattr(recorder._store, "read_all", fail)
            await mesh.kill("b")
            for _ in range(2):
                await asyncio.wait_for(reads.get(), LIMIT_S)
            await mesh.gateways["a"].until_named(kept, unloaded)
            assert (await where.index())[kept] == ("LOADING", "")
            assert not await where.server_ready()
            waiting = mesh.gateways["a"].send(request(1, 2, model=kept))
            refused = mesh.gateways["a"].send(request(1, 2, model=unloaded))
            # What a client says meanwhile counts; a load as it is changes no override.
            await where.unload(unloaded)
            assert "unknown model" in error_status_of(await refused).message
            loading = asyncio.ensure_future(where.load(kept))
            await mesh.gateways["a"].arrived()
            assert not waiting.done()
        assert numbers_of(await asyncio.wait_for(waiting, LIMIT_S)) == [2, 4]
        await loading
        loads = [each.load for each in mesh.executors["a"].instances]
        assert {each.config.max_batch_size for each in loads} == {7}
        assert not where.service._models.desired.awaited


async def test_a_scheduler_that_was_replaced_serves_what_clients_loaded_meanwhile(
    tmp_path: Path,
) -> None:
    repository, state = tmp_path / "models", tmp_path / "state"
    kept, unloaded = _names_of("a", "ab", 2)
    add_model(repository, kept)
    add_model(repository, unloaded)
    async with schedulers(
        repository, model_control_mode="explicit", state_directory=str(state)
    ) as mesh:
        await mesh.start(hold=True)
        where, gateway, executor = mesh.worlds["b"], mesh.gateways["a"], mesh.executors["a"]
        await where.load(kept)
        await where.load(unloaded)
        await gateway.until_named(kept, unloaded)
        begun = gateway.send(request(1, 2, model=kept))
        instance, batch = await executor.batch()
        queued = gateway.send(request(3, 4, model=kept))
        await gateway.arrived()
        shard, other = (mesh.worlds[each].service._models.shard for each in "ab")
        assert shard is not None
        assert other is not None
        # The test says when the members have settled.
        shard.changes._times = RecoveryTimes(silence_s=100 * LIMIT_S)
        # The other one has lost this one, which does not notice.
        for stream in [*other.links.dialled, *other.links._accepted]:
            other.on_peer_lost(stream)
        await mesh.gateways["b"].until_named(kept, unloaded)
        assert is_moved(await asyncio.wait_for(queued, LIMIT_S))
        while not gateway.ownership.empty():
            gateway.ownership.get_nowait()
        instance.response(batch)
        assert numbers_of(await begun) == [2, 4]
        # The gateway sends again what came back.
        await gateway.until_named(kept, unloaded)
        waiting = gateway.send(request(3, 4, model=kept))
        refused = gateway.send(request(5, 6, model=unloaded))
        await gateway.arrived()
        await where.load(kept, OVERRIDE)
        await where.unload(unloaded)
        assert not waiting.done()
        assert not refused.done()
        shard._on_settled()
        assert "unknown model" in error_status_of(await asyncio.wait_for(refused, 10)).message
        instance, batch = await executor.batch()
        assert instance.load.config.max_batch_size == OVERRIDE["max_batch_size"]
        instance.response(batch)
        assert numbers_of(await asyncio.wait_for(waiting, LIMIT_S)) == [6, 8]


async def test_a_scheduler_that_starts_serves_what_clients_loaded_until_its_peers_know_it(
    tmp_path: Path,
) -> None:
    repository, state = tmp_path / "models", tmp_path / "state"
    kept, unloaded = _names_of("a", "ab", 2)
    add_model(repository, kept)
    add_model(repository, unloaded)
    async with schedulers(
        repository, model_control_mode="explicit", state_directory=str(state)
    ) as mesh:
        await mesh.start("b")
        where = mesh.worlds["b"]
        await where.load(kept)
        await where.load(unloaded)

        async def change() -> None:
            await where.load(kept, OVERRIDE)
            await where.unload(unloaded)

        await mesh.start("a", on_listening=change)
        await mesh.until_ready(**{kept: "a"})
        loads = [instance.load.config for instance in mesh.executors["a"].instances]
        assert {(load.name, load.max_batch_size) for load in loads} == {(kept, 7)}
        assert (
            "unknown model"
            in error_status_of(await mesh.gateways["a"].ask(1, 2, model=unloaded)).message
        )


async def test_files_of_load_requests_are_read_by_the_models_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(files))
    repository, state = tmp_path / "models", tmp_path / "state"
    (own,), (others,) = _names_of("a", "ab", 1), _names_of("b", "ab", 1)
    repository.mkdir()
    async with schedulers(
        repository, model_control_mode="explicit", state_directory=str(state)
    ) as mesh:
        await mesh.start()
        for name in (own, others):
            await mesh.worlds["a"].load(name, OVERRIDE, {"1/model.onnx": name.encode()})
        await mesh.until_ready(**{own: "a", others: "b"})
        await mesh.kill("a")
        await mesh.until_ready(**{own: "b", others: "b"})
        with caplog.at_level("INFO"):
            await mesh.start("a")
        await mesh.until_ready(**{own: "a", others: "b"})
        assert "loading 1 models that clients had loaded before" in caplog.text
        written = [each.read_bytes() for each in files.glob("*/1/model.onnx")]
        assert written.count(others.encode()) == 1


async def test_models_of_a_scheduler_whose_loss_is_not_acted_on_yet_are_not_unknown(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "models"
    names = _names_of("b", "abc", 100)
    name = next(each for each in names if owner_of(each, "ac") == "a")
    add_model(repository, name)
    async with schedulers(
        repository,
        "abc",
        model_control_mode="explicit",
        state_directory=str(tmp_path / "state"),
        strict_readiness=False,
    ) as mesh:
        await mesh.start()
        where, gateway = mesh.worlds["a"], mesh.gateways["a"]
        await where.load(name)
        shard = where.service._models.shard
        assert shard is not None
        # As if it had stood still, and saw the ends of its streams before its peers.
        shard.changes._deferring_until_s = math.inf
        shard.changes._times = RecoveryTimes(silence_s=3 * LIMIT_S)
        await mesh.kill("b")
        third = mesh.worlds["c"].service._models.shard
        assert third is not None
        await until(lambda: shard.membership.members == third.owned.members == {"a", "c"})
        for each in "ac":
            assert is_moved(await mesh.gateways[each].ask(1, 2, model=name))
            assert not await mesh.worlds[each].server_ready()
            unknown = error_status_of(await mesh.gateways[each].ask(1, 2, model="unknown"))
            assert "unknown model" in unknown.message
        assert (await where.index())[name] == ("UNAVAILABLE", "its scheduler 'b' does not respond")
        shard._on_settled()
        await mesh.until_ready(**{name: "a"})
        assert numbers_of(await gateway.ask(1, 2, model=name)) == [2, 4]
        for one in mesh.worlds.values():
            await until(one.server_ready)
        # Who has named it may unload it.
        await where.unload(name)

        async def is_unknown() -> bool:
            response = await mesh.gateways["c"].ask(1, 2, model=name)
            return not is_moved(response) and "unknown model" in error_status_of(response).message

        await until(is_unknown)


async def test_a_model_that_nobody_can_load_keeps_no_mesh_from_being_ready(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for each in (one, other):
        add_model(each, "twice")
    async with schedulers(one, "ab", other, strict_readiness=False) as mesh:
        await mesh.start()
        for where in mesh.worlds.values():
            assert await where.server_ready()


async def test_ensembles_that_have_begun_end_before_their_steps_are_handed_over(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "models"
    ensemble, step = _names_of("b", "ab", 2)
    add_model(repository, step)
    add_model(repository, ensemble, ENSEMBLE.replace("STEP", step))
    async with schedulers(repository) as mesh:
        await mesh.start(hold=True)
        await mesh.until_ready(**{ensemble: "b", step: "b"})
        gateway, executor = mesh.gateways["b"], mesh.executors["b"]
        begun = gateway.send(request(1, 2, model=ensemble))
        instance, batch = await executor.batch()
        # Its step waits for the instance.
        waiting = gateway.send(request(3, 4, model=ensemble))
        await gateway.arrived()
        draining = asyncio.ensure_future(mesh.drain("b"))
        assert (await gateway.until_named()).leaving
        for pending, numbers in ((begun, [2, 4]), (waiting, [6, 8])):
            instance.response(batch)
            assert numbers_of(await asyncio.wait_for(pending, 10)) == numbers
            if pending is begun:
                instance, batch = await executor.batch()
        await asyncio.wait_for(draining, 10)


async def test_models_of_one_name_in_several_namespaces_have_one_scheduler(
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for each in (one, other):
        add_model(each, "twice")
    add_model(one, "unique")
    names = [f"{one}::twice", f"{other}::twice"]
    async with schedulers(one, "ab", other, model_namespacing=True) as mesh:
        await mesh.start()
        owner, unique = mesh.owner(names[0]), mesh.owner(f"{one}::unique")
        await mesh.until_ready(unique=unique)
        for name, gateway in mesh.gateways.items():
            where = mesh.worlds[name]
            await until(where.server_ready)
            for model, has_it in (("twice", owner), ("unique", unique)):
                response = await gateway.ask(1, 2, model=model)
                if name != has_it:
                    assert is_moved(response)
                elif model == "twice":
                    assert "namespace must be provided" in error_status_of(response).message
                else:
                    assert numbers_of(response) == [2, 4]
            assert await where.model_ready("unique")
            shown = await where.control("RepositoryIndex")
            assert [(each.name, each.state) for each in shown.models] == [
                ("twice", "READY"), ("twice", "READY"), ("unique", "READY"),
            ]  # fmt: skip
        notice = await mesh.gateways[unique].until_named(
            *({"unique"} | ({"twice"} if owner == unique else set()))
        )
        assert notice.scheduler == unique


async def test_executors_get_the_rights_of_calls_from_the_scheduler_of_the_caller(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "models"
    (own,) = _names_of("a", "ab", 1)
    add_model(repository, own)
    async with schedulers(repository) as mesh:
        await mesh.start(hold=True)
        await mesh.until_ready(**{own: "a"})
        where, executor = mesh.worlds["a"], mesh.executors["a"]
        await executor.command()
        # A gateway that checks its clients' rights.
        link = dial_scheduler(where.channel(), has_access_control=True)(
            on_items=lambda _: None, on_up=lambda: None, on_down=lambda: None
        )
        assert (await executor.command()).HasField("access_control")
        assert (await (await where.executor("late")).command()).HasField("access_control")
        begun = mesh.gateways["a"].send(request(1, 2, model=own))
        instance, batch = await executor.batch()
        caller = instance.load.instance
        head = pb2.ModelInferRequest(model_name="other").SerializeToString()
        for number, confined, refusal in (
            (1, 0, 0),
            (2, caller, 0),
            (3, 999, PermissionDenied.code),
        ):
            query = pb.CallQuery(number=number, head=head, caller=caller, confined_caller=confined)
            executor.send(call_query=query)
            while not (command := await executor.command()).HasField("call_rights"):
                pass
            rights = command.call_rights
            assert (rights.number, rights.error.code) == (number, refusal)
            assert rights.callable_models == (b"" if refusal else ALL_CALLABLE)
        instance.response(batch)
        await begun
        link.close()
