"""Schedulers one after another over one state directory, with scripted executors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nereid.rpc import RpcError
from nereid_scheduler.control.state.state import SchedulerState
from nereid_scheduler.control.state.store import StateError
from tests.support.scheduler.doubler_ensembles import FOURFOLD, add_ensembles
from tests.support.scheduler.ensemble_configs import save_ensemble
from tests.support.scheduler.scheduler_world import (
    LIMIT_S,
    World,
    add_model,
    error_status_of,
    numbers_of,
    request,
    world,
)
from tests.support.scheduler.state_store import MemoryStateStore
from tests.support.waiting import until

CONFIG = {
    "backend": "onnxruntime",
    "max_batch_size": 3,
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [2]}],
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
}
RULES = {"model_control_mode": "explicit", "no_executor_timeout_secs": 5.0}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_model(tmp_path / "models")
    return tmp_path / "models"


@asynccontextmanager
async def scheduler(
    repository: Path, *, joins: bool = True, **settings: Any
) -> AsyncIterator[World]:
    """The state is beside the repository; joins: an executor does, at once."""
    directory = repository.parent / "state"
    known = RULES | {"state_directory": str(directory)}
    async with world(repository, **(known | settings)) as it:
        if joins:
            await it.executor()
        yield it


async def test_what_a_client_loaded_comes_back_and_requests_wait_for_it(repository: Path) -> None:
    async with scheduler(repository) as it:
        await it.load(config=CONFIG)
    async with scheduler(repository, joins=False) as it:
        # No executor has joined yet.
        assert (await it.index())["doubler"] == ("LOADING", "")
        assert not await it.server_ready()
        gateway = await it.gateway()
        waiting = gateway.send(request(1, 2))
        await gateway.arrived()
        await it.executor()
        assert numbers_of(await waiting) == [2, 4]
        assert await it.server_ready()
        assert (await it.config()).max_batch_size == CONFIG["max_batch_size"]
        await it.unload()
    async with scheduler(repository, joins=False) as it:
        assert (await it.index())["doubler"] == ("", "")
        assert await it.server_ready()


async def test_a_model_with_files_of_its_own_comes_back_with_them(repository: Path) -> None:
    files = {"1/model.onnx": b"brought", "3/model.onnx": b""}
    config = CONFIG | {"version_policy": {"all": {}}}
    async with scheduler(repository) as it:
        await it.load("brought", config, files)
        await it.load("other", CONFIG, {"1/model.onnx": b"other"})
    async with scheduler(repository, joins=False) as it:
        executor = await it.executor()
        await until(it.server_ready)
        paths = {Path(each.load.version_path) for each in executor.instances}
        content = {
            (each.parent.name, each.name): (each / "model.onnx").read_bytes() for each in paths
        }
        assert sorted(content.values()) == [b"", b"brought", b"other"]
        await it.unload("other")
    async with scheduler(repository, allow_model_files=False) as it:
        await it.until_state("UNAVAILABLE", "brought")
        assert "are not allowed on this server" in (await it.index())["brought"][1]
    damage_files(repository.parent / "state", b"brought")
    async with scheduler(repository) as it:
        await it.until_state("UNAVAILABLE", "brought")
        state, reason = (await it.index())["brought"]
        assert (state, "is damaged or missing" in reason) == ("UNAVAILABLE", True)
        assert "other" not in await it.index()
        assert not await it.server_ready()
        # The client says what is to be.
        await it.unload("brought")
        assert "brought" not in await it.index()
        assert await it.server_ready()
        await it.load("brought", config, files)
        assert await it.server_ready()
        await it.unload("brought")
    async with scheduler(repository, joins=False) as it:
        assert set(await it.index()) == {"doubler"}


def damage_files(directory: Path, content: bytes) -> None:
    for each in (directory / "files").rglob("*"):
        if each.is_file() and each.read_bytes() == content:
            each.write_bytes(content + b"!")


@pytest.mark.parametrize("initial", ["doubler", "*"])
async def test_a_model_of_the_flags_that_a_client_unloaded_is_not_loaded_again(
    repository: Path, initial: str
) -> None:
    async with scheduler(repository, load_model=(initial,)) as it:
        await it.until_state("READY")
        await it.unload()
        await it.unload("unknown")
    for _ in range(2):
        async with scheduler(repository, load_model=(initial,)) as it:
            assert (await it.index())["doubler"] == ("", "")
            assert await it.server_ready()
    async with scheduler(repository, load_model=(initial,)) as it:
        await it.load(config=CONFIG)
    async with scheduler(repository, load_model=(initial,)) as it:
        await it.until_state("READY")
        assert (await it.config()).max_batch_size == CONFIG["max_batch_size"]
    # None of it is known to who has no state.
    async with scheduler(repository, load_model=(initial,), state_directory="") as it:
        await it.until_state("READY")
        assert (await it.config()).max_batch_size == 4


async def test_steps_come_back_as_they_were_loaded(tmp_path: Path) -> None:
    add_ensembles(tmp_path / "models")
    repository = tmp_path / "models"
    async with scheduler(repository) as it:
        await it.load("fourfold")
    # A step of its configuration of now is loaded as well.
    add_model(repository, "third")
    save_ensemble(repository, "fourfold", FOURFOLD.replace("second", "third"))
    async with scheduler(repository) as it:
        for each in ("fourfold", "doubler", "second", "third"):
            await it.until_state("READY", each)
        assert await it.server_ready()
        # Only what was loaded as a step goes with its ensemble.
        await it.load("second")
        await it.unload("fourfold", dependents=True)
        await it.until_state("UNAVAILABLE", "doubler")
    async with scheduler(repository) as it:
        await it.until_state("READY", "second")
        states = {name: state for name, (state, _) in (await it.index()).items()}
        assert states == {
            "second": "READY", "doubler": "", "third": "", "fourfold": "", "two_ways": "",
            "outer": "",
        }  # fmt: skip


async def test_a_load_that_failed_changes_nothing(repository: Path) -> None:
    async with scheduler(repository) as it:
        await it.load(config=CONFIG)
        for bad in (CONFIG | {"max_batch_size": -1}, CONFIG | {"backend": "none"}):
            with pytest.raises(RpcError):
                await it.load(config=bad)
            with pytest.raises(RpcError):
                await it.load("brought", bad, {"1/model.onnx": b""})
    async with scheduler(repository) as it:
        await it.until_state("READY")
        assert (await it.config()).max_batch_size == CONFIG["max_batch_size"]
        assert set(await it.index()) == {"doubler"}


async def test_a_load_that_waits_for_an_executor_is_known(repository: Path) -> None:
    async with scheduler(repository, no_executor_timeout_secs=0.05, joins=False) as it:
        with pytest.raises(RpcError, match="no executor has tried"):
            await it.load()
    async with scheduler(repository, joins=False) as it:
        assert (await it.index())["doubler"] == ("LOADING", "")


async def test_a_model_that_is_gone_from_its_repository_is_no_secret(repository: Path) -> None:
    async with scheduler(repository) as it:
        await it.load()
    (repository / "doubler").rename(repository.parent / "doubler")
    async with scheduler(repository) as it:
        assert (await it.index())["doubler"] == ("UNAVAILABLE", "Internal: there is no such model")
        assert not await it.server_ready()
        (repository.parent / "doubler").rename(repository / "doubler")
        await it.load()
        assert await it.server_ready()


async def test_models_of_namespaces_come_back(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    add_model(first)
    add_model(second, "other")
    settings = RULES | {"model_namespacing": True, "state_directory": str(tmp_path / "state")}
    async with world(first, second, **settings) as it:
        await it.executor()
        await it.load(config=CONFIG)
        await it.load("brought", CONFIG, {"1/model.onnx": b""})
    async with world(first, second, **settings) as it:
        await it.executor()
        for each in ("doubler", "brought"):
            await it.until_state("READY", each)
            assert (await it.config(each)).max_batch_size == 3
        await it.unload("brought")
        await it.unload()
    async with world(first, second, **settings) as it:
        assert {state for state, _ in (await it.index()).values()} == {""}
        assert await it.server_ready()


@pytest.mark.parametrize("mode", ["none", "poll"])
async def test_other_modes_take_models_from_their_repository_alone(
    repository: Path, mode: str
) -> None:
    async with scheduler(repository) as it:
        await it.load(config=CONFIG)
        await it.load("brought", CONFIG, {"1/model.onnx": b""})
    async with scheduler(repository, model_control_mode=mode) as it:
        await it.until_state("READY")
        assert (await it.config()).max_batch_size == 4
        assert set(await it.index()) == {"doubler"}


async def test_until_the_state_can_be_read_nothing_is_claimed(repository: Path) -> None:
    add_model(repository, "initial")
    add_model(repository, "unloaded")
    initial = ("initial", "unloaded")
    store = MemoryStateStore()
    async with scheduler(repository, state=SchedulerState(store), load_model=initial) as it:
        await it.until_state("READY", "unloaded")
        await it.load(config=CONFIG)
        await it.unload("unloaded")
    store.error = StateError("no connection")
    state = SchedulerState(store, start_s=0.0, retry_s=0.001)
    async with scheduler(repository, state=state, load_model=initial) as it:
        gateway = await it.gateway()
        await it.until_state("READY", "initial")
        # What was loaded is not known; what is asked for by then waits.
        waiting = gateway.send(request(1, 2))
        await gateway.arrived()
        assert not await it.server_ready()
        assert (await it.index())["doubler"] == ("", "")
        assert not waiting.done()
        store.error = None
        assert numbers_of(await asyncio.wait_for(waiting, LIMIT_S)) == [2, 4]
        assert (await it.config()).max_batch_size == 3
        await it.until_state("UNAVAILABLE", "unloaded")
        assert await it.server_ready()
        refused = await gateway.ask(1, 2, model="nothing")
        assert "unknown model" in error_status_of(refused).message


async def test_a_model_waits_for_files_that_cannot_be_read_and_others_do_not(
    repository: Path,
) -> None:
    store = MemoryStateStore()
    names = ("brought", "unloaded", "replaced")
    async with scheduler(repository, state=SchedulerState(store)) as it:
        await it.load()
        for each in names:
            await it.load(each, CONFIG, {"1/model.onnx": b"x"})
    store.files_error = StateError("no connection")
    async with scheduler(repository, state=SchedulerState(store, retry_s=0.001)) as it:
        gateway = await it.gateway()
        await it.until_state("READY")
        index = await it.index()
        assert {name: index[name] for name in names} == dict.fromkeys(names, ("LOADING", ""))
        waiting = gateway.send(request(1, 2, model="brought"))
        await gateway.arrived()
        assert not await it.server_ready()
        # What a client says meanwhile counts.
        await it.unload("unloaded")
        await it.load("replaced", CONFIG | {"max_batch_size": 9}, {"1/model.onnx": b"y"})
        assert "unloaded" not in await it.index()
        assert not waiting.done()
        assert "nereid_state_failures_total 0" not in await it.metrics()
        store.files_error = None
        assert numbers_of(await asyncio.wait_for(waiting, LIMIT_S)) == [2, 4]
        assert await it.server_ready()
        assert "unloaded" not in await it.index()
        assert (await it.config("replaced")).max_batch_size == 9


async def test_only_models_of_the_flags_end_a_start(repository: Path) -> None:
    """With --exit-on-error: what a client loaded is no reason for a restarted server to end."""
    add_model(repository, "initial")
    async with scheduler(repository) as it:
        await it.load()
    (repository / "doubler" / "config.pbtxt").write_text("nonsense")
    flags: dict[str, Any] = {"exit_on_error": True, "load_model": ("initial",)}
    async with scheduler(repository, **flags) as it:
        await it.until_state("READY", "initial")
        assert (await it.index())["doubler"][0] == "UNAVAILABLE"
        assert await it.service._models.control.first_loads()
        assert not it.service.failed_start


async def test_a_repository_that_cannot_be_read_hides_no_model(repository: Path) -> None:
    async with scheduler(repository) as it:
        await it.load()
    repository.rename(repository.with_name("unmounted"))
    async with scheduler(repository, joins=False) as it:
        assert not await it.server_ready()
        repository.with_name("unmounted").rename(repository)
        text = "Internal: a model repository cannot be read: No such file or directory"
        assert (await it.index())["doubler"] == ("UNAVAILABLE", text)
