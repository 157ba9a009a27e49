"""Loads and unloads that name a version."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nereid.rpc import RpcError, Status
from tests.support.scheduler.scheduler_world import World, add_model, numbers_of, request, world
from tests.support.waiting import until


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_model(tmp_path / "models", versions="1 2 3")
    return tmp_path / "models"


@asynccontextmanager
async def scheduler(repository: Path, **settings: Any) -> AsyncIterator[World]:
    known = {"model_control_mode": "explicit", "no_executor_timeout_secs": 5.0}
    known["state_directory"] = str(repository.parent / "state")
    async with world(repository, **(known | settings)) as it:
        await it.executor()
        yield it


async def refused(call: Awaitable[None]) -> str:
    with pytest.raises(RpcError) as caught:
        await call
    assert caught.value.status is Status.INVALID_ARGUMENT
    return caught.value.message


async def test_a_version_is_loaded_beside_those_in_service(repository: Path) -> None:
    async with scheduler(repository) as it:
        executor = await it.executor("two")
        await it.load()
        assert await it.ready_versions() == ["3"]
        await it.load(version="1")
        assert await it.ready_versions() == ["1", "3"]
        await it.load(version="1")
        await it.load(version="2")
        assert await it.ready_versions() == ["1", "2", "3"]
        # Each was loaded once.
        paths = [Path(each.load.version_path) for each in executor.instances]
        assert [path.name for path in paths] == ["3", "1", "2"]
        await it.unload(version="3")
        assert await it.ready_versions() == ["1", "2"]
        # Without a version, the version policy says which are in service.
        await it.load()
        assert await it.ready_versions() == ["3"]
        await it.load(version="2")
        assert await it.ready_versions() == ["2", "3"]


async def test_the_first_load_may_name_a_version(repository: Path) -> None:
    async with scheduler(repository) as it:
        await it.load(version="2")
        assert await it.ready_versions() == ["2"]
        gateway = await it.gateway()
        assert numbers_of(await gateway.send(request(1, 2))) == [2, 4]
        # The last version goes with its model.
        await it.unload(version="2")
        assert (await it.index())["doubler"] == ("UNAVAILABLE", "unloaded")


async def test_concurrent_changes_are_all_made(repository: Path) -> None:
    async with scheduler(repository) as it:
        await asyncio.gather(*(it.load(version=version) for version in "123"))
        assert await it.ready_versions() == ["1", "2", "3"]
        await asyncio.gather(it.unload(version="1"), it.unload(version="3"))
        assert await it.ready_versions() == ["2"]


async def test_the_versions_of_loads_are_in_service_after_a_restart(repository: Path) -> None:
    async with scheduler(repository) as it:
        await it.load(version="1")
        await it.load(version="3")
    async with scheduler(repository) as it:
        await until(it.server_ready)
        assert await it.ready_versions() == ["1", "3"]
        await it.unload(version="3")
    async with scheduler(repository) as it:
        await until(it.server_ready)
        assert await it.ready_versions() == ["1"]
        await it.load()
    async with scheduler(repository) as it:
        await until(it.server_ready)
        assert await it.ready_versions() == ["3"]


@pytest.mark.parametrize("version", ["x", "-1", "01", "1.5", "9" * 20, " 1"])
async def test_what_is_no_version_is_refused(repository: Path, version: str) -> None:
    expected = "invalid value for parameter 'version', expected the number of a version."
    async with scheduler(repository) as it:
        assert await refused(it.load(version=version)) == expected
        await it.load()
        assert await refused(it.unload(version=version)) == expected
        assert await it.ready_versions() == ["3"]


async def test_a_version_that_there_is_not_is_refused(repository: Path) -> None:
    async with scheduler(repository) as it:
        await it.load()
        assert await refused(it.load(version="7")) == "model 'doubler' has no version 7"
        expected = "version 1 of model 'doubler' is not in service"
        assert await refused(it.unload(version="1")) == expected
        assert await it.ready_versions() == ["3"]
        error = await refused(it.load(config={"backend": "onnxruntime"}, version="1"))
        assert error == (
            "load parameter 'version' cannot be combined with a configuration or files."
        )
