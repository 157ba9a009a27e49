"""The life cycle of an ensemble: it is loaded, changed and unloaded with its models."""

from pathlib import Path

import pytest

from nereid.rpc import RpcError
from tests.support.scheduler.doubler_ensembles import add_ensembles, ensemble, step
from tests.support.scheduler.ensemble_configs import save_ensemble
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    World,
    add_model,
    error_status_of,
    numbers_of,
    request,
    world,
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    add_ensembles(path)
    return path


async def states(it: World) -> dict[str, str]:
    """Of all models that were ever loaded: the reason, or else the state."""
    index = await it.index()
    return {name: reason or state for name, (state, reason) in index.items() if state}


async def test_an_ensemble_is_ready_when_its_models_are(mesh: World) -> None:
    gateway = await mesh.gateway()
    assert (await mesh.index())["fourfold"] == ("LOADING", "")
    early = gateway.send(request(1, 2, model="outer"))
    executor = await mesh.executor(lazy=True)
    loads = {}
    for _ in range(2):
        load = (await executor.command()).load
        loads[load.config.name] = load
    executor.load(loads["doubler"])
    await mesh.until_state("READY")
    assert (await mesh.index())["fourfold"] == ("LOADING", "")
    executor.load(loads["second"])
    await mesh.until_state("READY", "outer")
    assert numbers_of(await early) == [4, 8]
    assert await mesh.model_ready("outer")
    # Requests wait for executors, whatever they go through.
    await executor.die()
    await mesh.until_state("READY", "outer")
    waiting = gateway.send(request(1, 2, model="outer"))
    await gateway.arrived()
    assert not await mesh.model_ready("outer")
    await mesh.executor("two")
    assert numbers_of(await waiting) == [4, 8]


async def test_a_model_that_cannot_be_loaded_fails_its_ensembles(repository: Path) -> None:
    add_model(repository, "other", CONFIG.replace("[ 2 ]", "[ 3 ]"))
    save_ensemble(repository, "unfit", ensemble(step("other", "INPUT0", "OUTPUT0")))
    save_ensemble(repository, "lost", ensemble(step("nowhere", "INPUT0", "OUTPUT0")))
    save_ensemble(repository, "circle", ensemble(step("circle", "INPUT0", "OUTPUT0")))
    save_ensemble(repository, "old", ensemble(("doubler:9", *step("", "INPUT0", "OUTPUT0")[1:])))
    async with world(repository) as it:
        await it.executor(refuse="broken")
        await it.until_state("UNAVAILABLE", "outer")
        found = await states(it)
        broken = (
            "has no loaded version. Model 'doubler' loading failed with error: version 1 is at"
            " UNAVAILABLE state: Internal: broken;"
        )
        assert found["fourfold"] == f"ensemble 'fourfold' depends on 'doubler' which {broken}"
        assert found["outer"] == (
            "ensemble 'outer' depends on 'fourfold' which is not valid. Model 'fourfold' failed"
            f" with error: ensemble 'fourfold' depends on 'doubler' which {broken}"
        )
        # An executor that can brings all of them up, as far as they make sense.
        await it.executor("two")
        await it.until_state("READY", "outer")
        found = await states(it)
        assert found["fourfold"] == "READY"
        assert "inconsistent shape: [-1,2] is inferred from model unfit" in found["unfit"]
        assert found["lost"].endswith("that are not available or ambiguous: nowhere")
        assert found["circle"].endswith("between ensembles: circle -> ... -> circle -> circle")
        required = "ensemble 'old' depends on 'doubler' whose required version 9 is not loaded."
        assert found["old"] == required


async def test_an_ensemble_is_unloaded_and_loaded_with_its_models(repository: Path) -> None:
    async with world(repository, model_control_mode="explicit") as it:
        executor, gateway = await it.pair()
        await it.load("outer")
        ready = dict.fromkeys(("doubler", "second", "fourfold", "outer"), "READY")
        assert await states(it) == ready
        executor.hold = True
        response = gateway.send(request(1, 2, model="outer"))
        instance, batch = await executor.batch()
        await it.unload("second")
        gone = {"second": "UNLOADING", "fourfold": "unloaded", "outer": "unloaded"}
        assert await states(it) == ready | gone
        error_status = error_status_of(await gateway.ask(1, 2, model="outer"))
        assert error_status.message.endswith("'outer' has no available versions")
        # The pending request still gets its last step.
        instance.response(batch)
        instance, batch = await executor.batch()
        instance.response(batch)
        assert numbers_of(await response) == [4, 8]
        await it.until_state("UNAVAILABLE", "second")
        executor.hold = False
        await it.load("second")
        assert await states(it) == ready
        assert numbers_of(await gateway.ask(1, 2, model="outer")) == [4, 8]


async def test_unload_dependents_unloads_the_models_that_an_ensemble_loaded(
    repository: Path,
) -> None:
    async with world(repository, model_control_mode="explicit", load_model=("second",)) as it:
        await it.executor()
        await it.load("outer")
        await it.unload("outer")
        assert set((await states(it)).values()) == {"READY", "unloaded"}
        await it.load("outer")
        await it.load("two_ways")
        await it.unload("fourfold", dependents=True)
        # Another ensemble still needs it.
        assert (await states(it))["doubler"] == "READY"
        await it.unload("two_ways", dependents=True)
        await it.until_state("UNAVAILABLE", "doubler")
        # The one that was loaded by name remains.
        found = await states(it)
        assert found.pop("second") == "READY"
        assert set(found.values()) == {"unloaded"}
        await it.unload("nowhere", dependents=True)


async def test_loads_that_fail_say_why(repository: Path) -> None:
    save_ensemble(repository, "lost", ensemble(step("nowhere", "INPUT0", "OUTPUT0")))
    save_ensemble(repository, "one", ensemble(step("other", "INPUT0", "OUTPUT0")))
    save_ensemble(repository, "other", ensemble(step("one", "INPUT0", "OUTPUT0")))
    errors = {
        "lost": "ensemble lost contains models that are not available or ambiguous: nowhere",
        "one": "circular dependency between ensembles: one -> ... -> other -> one",
    }
    async with world(repository, model_control_mode="explicit") as it:
        await it.executor()
        for name, reason in errors.items():
            with pytest.raises(RpcError) as refused:
                await it.load(name)
            assert refused.value.message == f"load failed for model '{name}': {reason}\n"
        # A reload that would make a cycle leaves the old version in service.
        await it.load("outer")
        save_ensemble(repository, "fourfold", ensemble(step("outer", "INPUT0", "OUTPUT0")))
        with pytest.raises(RpcError, match=r"fourfold -> \.\.\. -> outer -> fourfold"):
            await it.load("fourfold")
        gateway = await it.gateway()
        assert numbers_of(await gateway.ask(1, 2, model="outer")) == [4, 8]


async def test_the_latest_version_of_a_model_runs_the_step(repository: Path) -> None:
    rules = {"model_control_mode": "explicit", "load_model": ("*",)}
    async with world(repository, **rules) as it:
        executor, gateway = await it.pair()
        assert numbers_of(await gateway.ask(1, 2, model="fourfold")) == [4, 8]
        (repository / "second" / "7").mkdir()
        (repository / "second" / "7" / "model.onnx").write_bytes(b"")
        await it.load("second")
        executor.hold = True
        response = gateway.send(request(1, 2, model="fourfold"))
        numbers = []
        for _ in range(2):
            instance, batch = await executor.batch()
            numbers.append(instance.load.version)
            instance.response(batch)
        assert numbers_of(await response) == [4, 8]
        assert numbers == [1, 7]
