"""Copies of requests go to shadows that differ, hang, crash, leak or are slow: the report says so,
and no client notices anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as grpcclient

from nereid_explain import shadow as command
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import python_models
from tests.support.models.e2e_models import save_scaler

pytestmark = pytest.mark.slow

CONFIG = "max_batch_size: 16\ndynamic_batching {}\nversion_policy { all {} }\n"
SHADY = """
backend: "python"
max_batch_size: 16
input { name: "INPUT0" data_type: TYPE_FP32 dims: [8] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }
instance_group [{ count: 1 kind: KIND_CPU }]
"""
SEQUENCE = """
backend: "python"
max_batch_size: 4
input { name: "INPUT" data_type: TYPE_INT32 dims: [1] }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: [1] }
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for version, factor in ((1, 2), (2, 3), (3, 2)):
        save_scaler(root, "scaler", factor, CONFIG, version)
    save_scaler(root, "plain", 2, CONFIG)
    python_models.save(root, "misbehaving", SHADY)
    return root


@pytest.fixture(scope="module")
def mesh(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    log = tmp_path_factory.mktemp("log") / "log"
    with running(models, log, "--max-queue-size=64") as mesh:
        status, reply = mesh.get(
            "/v2/repository/models/scaler/traffic", "POST", b'{"weights": {"1": 1}}'
        )
        assert status == 200, reply
        yield mesh


def shadow(mesh: Mesh, *arguments: str) -> int:
    return command.main([*arguments, "-u", mesh.http])


def report(mesh: Mesh, model: str) -> Mapping[str, Any]:
    _, reply = mesh.get(f"/v2/repository/models/{model}/shadow")
    return json.loads(reply)["report"] or {"compared": 0, "differing": 0, "not_compared": {}}


@contextlib.asynccontextmanager
async def client_of(mesh: Mesh) -> AsyncIterator[grpcclient.InferenceServerClient]:
    client = grpcclient.InferenceServerClient(mesh.grpc)
    try:
        yield client
    finally:
        await client.close()


async def send(mesh: Mesh, model: str, number: int, rows: int = 1) -> None:
    """Send requests, several at a time; each must have the model's own response."""
    array = np.full((rows, 8), 1.5, np.float32)
    tensor = grpcclient.InferInput("INPUT0", [rows, 8], "FP32")
    tensor.set_data_from_numpy(array)

    async def one(client: grpcclient.InferenceServerClient) -> None:
        response = await client.infer(model, [tensor])
        assert np.array_equal(response.as_numpy("OUTPUT0"), array * 2)

    async with client_of(mesh) as client:
        for _ in range(0, number, 4):
            await asyncio.gather(*(one(client) for _ in range(4)))


async def test_responses_of_a_version_are_compared(
    mesh: Mesh, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shadow(mesh, "set", "scaler", "--to", "version:3") == 0
    await send(mesh, "scaler", 40)
    until(lambda: report(mesh, "scaler")["compared"], "comparisons")
    assert shadow(mesh, "report", "scaler") == 0
    assert "100% to version:3" in capsys.readouterr().out
    # The copies were executed by version 3 alone, and in no response of version 1.
    stats = {
        each["version"]: each
        for each in json.loads(mesh.get("/v2/models/scaler/stats")[1])["model_stats"]
    }
    assert int(stats["1"]["inference_count"]) == 40
    compared = report(mesh, "scaler")["compared"]
    assert 0 < compared <= int(stats["3"]["inference_count"]) <= 40

    assert shadow(mesh, "set", "scaler", "--to", "version:2") == 0
    await send(mesh, "scaler", 40)
    until(lambda: report(mesh, "scaler")["differing"], "differences")
    assert shadow(mesh, "report", "scaler") == 1
    printed = capsys.readouterr().out
    assert "value of OUTPUT0" in printed
    assert "3.0 -> 4.5" in printed
    (difference,) = report(mesh, "scaler")["models"][0]["differences"]
    assert difference["examples"][0]["inputs"]["INPUT0"]["shape"] == [1, 8]
    until(
        lambda: 'nereid_shadow_differences_total{model="scaler",kind="value"}' in mesh.metrics(),
        "the metric",
    )
    assert shadow(mesh, "clear", "scaler") == 0
    assert mesh.get("/v2/repository/models/scaler/shadow")[1] == (
        b'{"model":"scaler","shadow":null,"compared":0,"differing":0,"report":null}'
    )


@pytest.mark.parametrize("mode", ["hang", "crash", "leak", "slow", "huge", "wrong"])
async def test_no_client_notices_a_shadow(mesh: Mesh, models: Path, mode: str) -> None:
    file = models / "misbehaving" / "1" / "mode"
    file.write_text(mode)
    try:
        arguments = "set", "plain", "--to", "model:misbehaving", "--copy-timeout", "2"
        assert shadow(mesh, *arguments, "--rules", "OUTPUT0: exact") == 0
        await send(mesh, "plain", 200)

        def outcomes() -> bool:
            found = report(mesh, "plain")
            return bool(found["compared"] or found["not_compared"])

        until(outcomes, "copies")
        await send(mesh, "plain", 40)
    finally:
        file.unlink()
        assert shadow(mesh, "clear", "plain") == 0
