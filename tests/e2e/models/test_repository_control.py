"""Loading and unloading through the whole mesh, with Triton's own clients and under load."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as aio_client
import tritonclient.http as http_client
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.e2e_models import save_heavy, save_scaler
from tests.support.models.scaler import CONFIG, rows, scaled

CLIENTS = 64
RELOADS = 10


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mesh, Path]]:
    """A mesh and its repository, as the test before has left them."""
    root = tmp_path_factory.mktemp("shared")
    save_scaler(root / "models", "scaler", 1, CONFIG)
    flags = ("--model-control-mode=explicit", "--load-model=*")
    with running(root / "models", root / "log", *flags) as it:
        yield it, root / "models"


@pytest.fixture
def repository(shared: tuple[Mesh, Path]) -> Path:
    """The shared one with a single model, which has just been loaded."""
    mesh, models = shared
    for directory in models.iterdir():
        shutil.rmtree(directory)
    with grpc_client.InferenceServerClient(mesh.grpc) as client:
        for name in mesh.index():
            client.unload_model(name)
        until(lambda: not mesh.index(), "what lies nowhere to be forgotten")
        save_scaler(models, "scaler", 1, CONFIG)
        client.load_model("scaler")
    return models


@pytest.fixture
def mesh(shared: tuple[Mesh, Path], repository: Path) -> Mesh:
    return shared[0]


def entry(mesh: Mesh) -> dict[str, Any]:
    """What the index says of version 1; others may be there that a test before has unloaded."""
    first = ("scaler", "1")
    return next(each for each in mesh.versions() if (each["name"], each.get("version")) == first)


class Crowd:
    """Clients that ask again and again, each knowing which factors would be right."""

    def __init__(self, client: aio_client.InferenceServerClient) -> None:
        self._client = client
        # Loaded before a request was sent, and the one that may be loaded when it gets a response.
        self.oldest = self.newest = 1
        self.seen: set[int] = set()
        self.stopping = False
        self._left = 0
        self._round = asyncio.Event()

    async def ask_on(self, number: int) -> None:
        while not self.stopping:
            oldest = self.oldest
            tensor = aio_client.InferInput("INPUT0", [1, 8], "FP32")
            tensor.set_data_from_numpy(rows(number))
            response = await self._client.infer("scaler", [tensor])
            factors = np.unique(response.as_numpy("OUTPUT0") / number)
            assert len(factors) == 1
            assert oldest <= factors[0] <= self.newest
            self.seen.add(int(factors[0]))
            self._left -= 1
            if not self._left:
                self._round.set()

    async def another_round(self) -> None:
        """Until there were as many responses as there are clients."""
        self._left = CLIENTS
        self._round.clear()
        await asyncio.wait_for(self._round.wait(), 30)


async def test_a_model_reloaded_under_load_loses_nothing(mesh: Mesh, repository: Path) -> None:
    async with aio_client.InferenceServerClient(mesh.grpc) as client:
        crowd = Crowd(client)
        asking = [asyncio.create_task(crowd.ask_on(number)) for number in range(1, CLIENTS + 1)]
        for factor in range(2, RELOADS + 2):
            await crowd.another_round()
            crowd.newest = factor
            save_scaler(repository, "scaler", factor, CONFIG)
            await client.load_model("scaler")
            crowd.oldest = factor
        await crowd.another_round()
        crowd.stopping = True
        await asyncio.gather(*asking)
    assert crowd.seen == set(range(1, RELOADS + 2))
    assert entry(mesh)["state"] == "READY"


async def test_an_unload_under_load_completes_what_was_accepted(mesh: Mesh) -> None:
    async with aio_client.InferenceServerClient(mesh.grpc) as client:

        async def ask() -> str:
            tensor = aio_client.InferInput("INPUT0", [1, 8], "FP32")
            tensor.set_data_from_numpy(rows(3))
            try:
                response = await client.infer("scaler", [tensor])
            except InferenceServerException as error:
                return str(error.message())
            assert response.as_numpy("OUTPUT0")[0, 0] == 3 * 1
            return "answered"

        for _ in range(RELOADS):
            asking = [asyncio.create_task(ask()) for _ in range(CLIENTS)]
            await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            await client.unload_model("scaler")
            reported = set(await asyncio.gather(*asking))
            refusal = "Request for unknown model: 'scaler' has no available versions"
            assert "answered" in reported
            assert reported <= {"answered", refusal}
            assert await ask() == refusal
            await client.load_model("scaler")
            assert await ask() == "answered"


def statistics(mesh: Mesh) -> dict[str, int]:
    """How many inferences each version has made."""
    _, body = mesh.get("/v2/models/scaler/stats")
    found = json.loads(body).get("model_stats", [])
    return {each["version"]: each["inference_count"] for each in found}


def test_instance_groups_change_in_place(mesh: Mesh, repository: Path) -> None:
    assert scaled(mesh) == 1
    for count in (5, 1, 3):
        groups = f"instance_group [{{ count: {count} kind: KIND_CPU }}]"
        (repository / "scaler" / "config.pbtxt").write_text(CONFIG + groups)
        assert mesh.get("/v2/repository/models/scaler/load", "POST") == (200, b"")
        with http_client.InferenceServerClient(mesh.http) as client:
            (group,) = client.get_model_config("scaler")["instance_group"]
        assert group["count"] == count
        until(partial(has_instances, mesh, count), f"{count} instances")
    assert statistics(mesh) == {"1": 1}
    assert scaled(mesh) == 1


def has_instances(mesh: Mesh, count: int) -> bool:
    lines = mesh.metrics().splitlines()
    found = [each for each in lines if each.startswith("nereid_instances{")]
    return sum(int(float(each.rpartition(" ")[2])) for each in found) == count


def test_an_unload_gives_memory_back(mesh: Mesh, repository: Path) -> None:
    (executor,) = mesh.children("nereid_executor")
    size_bytes = 200 << 20
    save_heavy(repository, "heavy", size_bytes)

    def resident_bytes() -> int:
        pages = Path(f"/proc/{executor}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    with http_client.InferenceServerClient(mesh.http) as client:
        client.load_model("heavy")
        before = resident_bytes()
        client.unload_model("heavy")
        until(lambda: resident_bytes() < before - size_bytes * 0.9, "the memory")


def test_a_version_by_name_over_both_protocols(mesh: Mesh, repository: Path) -> None:
    for version in (2, 3):
        save_scaler(repository, "scaler", version, CONFIG, version)

    def call(what: str, body: object) -> tuple[int, bytes]:
        path = f"/v2/repository/models/scaler/{what}"
        return mesh.get(path, "POST", json.dumps({"parameters": body}).encode())

    def factors() -> list[float]:
        ready = [each["version"] for each in mesh.versions() if each.get("state") == "READY"]
        return [scaled(mesh, version=version) for version in sorted(ready)]

    assert factors() == [1]
    assert call("load", {"version": "3"})[0] == 200
    assert factors() == [1, 3]
    assert call("unload", {"version": 1})[0] == 200
    assert factors() == [3]
    for body in ({"version": "x"}, {"version": None}, {"version": [2]}, {"version": "4"}):
        for what in ("load", "unload"):
            status, reply = call(what, body)
            assert (status, b"version" in reply) == (400, True)
    with grpc_client.InferenceServerClient(mesh.grpc) as client:
        stub = client._client_stub
        load = service_pb2.RepositoryModelLoadRequest(model_name="scaler")
        load.parameters["version"].int64_param = 2
        stub.RepositoryModelLoad(load)
        assert factors() == [2, 3]
        unload = service_pb2.RepositoryModelUnloadRequest(model_name="scaler")
        unload.parameters["version"].string_param = "3"
        stub.RepositoryModelUnload(unload)
        assert factors() == [2]
