"""Schedulers one after another over one state directory, with scripted executors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nereid.pb import kserve_pb2 as kserve
from tests.support.scheduler.scheduler_world import (
    World,
    add_model,
    numbers_of,
    request,
    world,
)

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
async def scheduler(repository: Path, **settings: object) -> AsyncIterator[World]:
    """One of them; the state is beside the repository."""
    directory = repository.parent / "state"
    known = RULES | {"state_directory": str(directory)}
    async with world(repository, **(known | settings)) as it:
        yield it


async def load(it: World, name: str = "doubler", config: object = None, **files: bytes) -> None:
    asked = kserve.RepositoryModelLoadRequest(model_name=name)
    if config is not None:
        asked.parameters["config"].string_param = json.dumps(config)
    for path, content in files.items():
        asked.parameters[f"file:{path}"].bytes_param = content
    await it.control("RepositoryModelLoad", asked, kserve.RepositoryModelLoadResponse)


async def unload(it: World, name: str = "doubler", *, dependents: bool = False) -> None:
    asked = kserve.RepositoryModelUnloadRequest(model_name=name)
    asked.parameters["unload_dependents"].bool_param = dependents
    await it.control("RepositoryModelUnload", asked, kserve.RepositoryModelUnloadResponse)


async def is_ready(it: World) -> bool:
    reply = await it.control("ServerReady", kserve.ServerReadyRequest(), kserve.ServerReadyResponse)
    assert isinstance(reply, kserve.ServerReadyResponse)
    return reply.ready


async def config_of(it: World, name: str = "doubler") -> kserve.ModelConfigResponse:
    asked = kserve.ModelConfigRequest(name=name)
    reply = await it.control("ModelConfig", asked, kserve.ModelConfigResponse)
    assert isinstance(reply, kserve.ModelConfigResponse)
    return reply


async def test_what_a_client_loaded_comes_back_and_requests_wait_for_it(repository: Path) -> None:
    async with scheduler(repository) as it:
        await it.executor()
        await load(it, config=CONFIG)
    async with scheduler(repository) as it:
        # No executor has joined yet.
        assert (await it.index())["doubler"] == ("LOADING", "")
        assert not await is_ready(it)
        gateway = await it.gateway()
        waiting = gateway.send(request(1, 2))
        await gateway.arrived()
        await it.executor()
        assert numbers_of(await waiting) == [2, 4]
        assert await is_ready(it)
        assert (await config_of(it)).config.max_batch_size == CONFIG["max_batch_size"]
        await unload(it)
    async with scheduler(repository) as it:
        assert (await it.index())["doubler"] == ("", "")
        assert await is_ready(it)
