"""Several repositories with models of one name (--model-namespacing), over real sockets."""

import shutil
from pathlib import Path

import pytest

from nereid.rpc import RpcError, Status
from tests.support.scheduler.scheduler_world import (
    World,
    add_model,
    error_status_of,
    numbers_of,
    request,
    world,
)

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: 2 }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: 2 }}
ensemble_scheduling {{ step {{
  model_name: "{}" model_version: -1 {}
  input_map {{ key: "INPUT0" value: "INPUT0" }} output_map {{ key: "OUTPUT0" value: "OUTPUT0" }}
}} }}
"""
AMBIGUOUS = (
    "There are 2 identifiers of model 'm' in global map, model namespace must be provided to"
    " resolve ambiguity."
)


@pytest.fixture
def repositories(tmp_path: Path) -> tuple[Path, Path]:
    """m and an ensemble of it are in both; v, and an ensemble of v, are each in one."""
    one, two = tmp_path / "one", tmp_path / "two"
    for repository, other in ((one, two), (two, one)):
        add_model(repository, "m")
        # What it says of namespaces does not count.
        config = ENSEMBLE.format("m", f'model_namespace: "{other}"')
        add_model(repository, f"{repository.name}s", config)
    add_model(two, "v")
    add_model(one, "of_v", ENSEMBLE.format("v", ""))
    return one, two


async def rows(it: World, *, ready: bool = False) -> list[tuple[str, str, str]]:
    reply = await it.control("RepositoryIndex", ready=ready)
    return [(each.name, each.state, each.reason) for each in reply.models]


async def test_ensembles_use_the_models_of_their_own_repository(
    repositories: tuple[Path, Path],
) -> None:
    one, two = repositories
    async with world(one, two, model_namespacing=True) as it:
        executor = await it.executor()
        names = ["m", "of_v", "ones", "m", "twos", "v"]
        while [(name, state) for name, state, _ in await rows(it)] != [(n, "READY") for n in names]:
            pass
        gateway = await it.gateway()
        places = {each.load.version_path: each for each in executor.instances}
        assert len(places) == 3
        for ensemble, path in (("ones", one / "m"), ("twos", two / "m"), ("of_v", two / "v")):
            executor.hold = True
            future = gateway.send(request(1, 2, model=ensemble))
            instance, batch = await executor.batch()
            assert instance.load.version_path == str(path / "1")
            assert instance.load.config.name == path.name
            # Of models with one name, an executor's instances may belong to different schedulers.
            assert instance.load.model == f"{path.parent}::{path.name}"
            instance.response(batch)
            assert numbers_of(await future) == [2, 4]
        executor.hold = False
        # The name that two have is ambiguous, and so is its configuration.
        assert error_status_of(await gateway.ask(1, 2, model="m")).message == AMBIGUOUS
        with pytest.raises(RpcError) as refused:
            await it.control("ModelConfig", name="m")
        assert (refused.value.status, refused.value.message) == (Status.INVALID_ARGUMENT, AMBIGUOUS)
        assert not await it.model_ready("m")
        with pytest.raises(RpcError, match="requested model 'm' is not available"):
            await it.control("ModelStatistics", name="m")
        every = await it.control("ModelStatistics")
        assert sorted(each.name for each in every.model_stats) == sorted(names)
        (step,) = (await it.config("of_v")).ensemble_scheduling.step
        assert (step.model_name, step.model_namespace) == ("v", str(two))
        page = await it.metrics()
        for repository in repositories:
            labels = f'{{model="m",version="1",namespace="{repository}"}}'
            assert f"nv_inference_count{labels} 1" in page


async def test_loads_and_unloads_concern_all_models_of_a_name(
    repositories: tuple[Path, Path],
) -> None:
    one, two = repositories
    rules = {"model_namespacing": True, "model_control_mode": "explicit"}
    async with world(one, two, load_model=("m",), **rules) as it:
        await it.executor()
        assert [name for name, *_ in await rows(it)] == ["m", "of_v", "ones", "m", "twos", "v"]
        gateway = await it.gateway()
        await it.load("m")
        assert [row[0] for row in await rows(it, ready=True)] == ["m", "m"]
        assert error_status_of(await gateway.ask(1, 2, model="m")).message == AMBIGUOUS
        with pytest.raises(RpcError) as refused:
            await it.load("nope")
        assert refused.value.message == (
            "failed to load 'nope', failed to poll from model repository: there is no such model"
        )
        await it.unload("m")
        await it.unload("nope")
        gone = error_status_of(await gateway.ask(1, 2, model="m"))
        assert gone.message == "Identifier of model 'm' is not found in global map"
        # One of the two is enough to be asked by its plain name.
        shutil.rmtree(two / "m")
        await it.load("m")
        assert numbers_of(await gateway.ask(1, 2, model="m")) == [2, 4]
        # A step of a name that only others have, twice, is ambiguous.
        add_model(two, "of_m", ENSEMBLE.format("m", ""))
        await it.load("of_m")
        assert numbers_of(await gateway.ask(1, 2, model="of_m")) == [2, 4]


async def test_without_namespaces_an_ensemble_of_a_name_that_two_have_is_refused(
    repositories: tuple[Path, Path],
) -> None:
    async with world(*repositories, model_control_mode="explicit") as it:
        await it.executor()
        with pytest.raises(RpcError) as refused:
            await it.load("ones")
        assert refused.value.message == (
            "load failed for model 'ones': ensemble ones contains models that are not available or"
            " ambiguous: m\n"
        )
