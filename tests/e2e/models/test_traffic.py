"""Requests that name no version are divided among a model's versions, in a mesh of two gateways and
two schedulers: callers stay together, whoever serves them, and whatever ends meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as grpcclient

from nereid_explain import traffic as command
from tests.support.mesh.mesh import START_S, Mesh, ask, running, until
from tests.support.models.e2e_models import save_scaler

pytestmark = pytest.mark.slow

HTTP_OK = 200
CONFIG = """
max_batch_size: 16
dynamic_batching {}
version_policy { all {} }
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 16
input { name: "INPUT0" data_type: TYPE_FP32 dims: [8] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [8] }
ensemble_scheduling {
  step { model_name: "scaler" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
}
"""
# By version, what it makes of 1.
FACTORS = {1: 2.0, 2: 3.0}
USERS = [f"user {number}" for number in range(60)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for number, factor in FACTORS.items():
        save_scaler(root, "scaler", int(factor), CONFIG, number)
    (root / "chain" / "1").mkdir(parents=True)
    (root / "chain" / "config.pbtxt").write_text(ENSEMBLE)
    return root


@pytest.fixture(scope="module")
def mesh(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    log = tmp_path_factory.mktemp("log") / "log"
    flags = ("--schedulers=2", "--gateways=2", "--model-control-mode=explicit", "--load-model=*")
    with running(models, log, *flags) as mesh:
        yield mesh


def set_traffic(mesh: Mesh, *arguments: str) -> int:
    return command.main(["scaler", *arguments, "-u", mesh.http])


async def factors(mesh: Mesh, users: list[str], model: str = "scaler") -> list[float]:
    """What the versions that the users' requests went to have made of 1."""
    array = np.ones((1, 8), np.float32)
    tensor = grpcclient.InferInput("INPUT0", [1, 8], "FP32")
    tensor.set_data_from_numpy(array)

    async def one(client: grpcclient.InferenceServerClient, user: str) -> float:
        headers = {"x-user": user} if user else None
        response = (await client.infer(model, [tensor], headers=headers)).as_numpy("OUTPUT0")
        assert response is not None
        return float(response[0, 0])

    # Each connection is accepted by one of the gateways.
    clients = [grpcclient.InferenceServerClient(mesh.grpc) for _ in range(4)]
    try:
        return await asyncio.gather(
            *(one(clients[number % len(clients)], user) for number, user in enumerate(users))
        )
    finally:
        for client in clients:
            await client.close()


async def test_weights_hold_and_callers_keep_their_versions(
    mesh: Mesh, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(await factors(mesh, [""] * 20)) == {3.0}
    assert set_traffic(mesh, "1=80", "2=20") == 0
    counts = Counter(await factors(mesh, [""] * 2000))
    assert counts[3.0] / 2000 == pytest.approx(0.2, abs=0.04)
    assert set_traffic(mesh, "1=50", "2=50", "--by", "header:X-User") == 0
    chosen = await factors(mesh, USERS)
    assert set(chosen) == {2.0, 3.0}
    for _ in range(3):
        assert await factors(mesh, USERS) == chosen
    # A step has the key of the ensemble's caller.
    assert await factors(mesh, USERS, "chain") == chosen
    over_http = [http_version(mesh, user) for user in USERS]
    assert [FACTORS[version] for version in over_http] == chosen
    # A raised weight moves callers only to its version.
    assert set_traffic(mesh, "1=50", "2=150", "--by", "header:x-user") == 0
    moved = [
        pair for pair in zip(chosen, await factors(mesh, USERS), strict=True) if pair[0] != pair[1]
    ]
    assert set(moved) == {(2.0, 3.0)}
    assert set_traffic(mesh) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "scaler: 1=50 2=150 by header:x-user (call)"
    )
    assert 'nereid_model_traffic_weight{model="scaler",version="2"} 150' in mesh.metrics()


def http_version(mesh: Mesh, user: str) -> int:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 8], "data": [1.0] * 8}
    body = json.dumps({"inputs": [tensor]}).encode()
    status, response = ask(mesh.http, "/v2/models/scaler/infer", "POST", body, {"X-User": user})
    assert status == HTTP_OK, response
    return int(json.loads(response)["model_version"])


async def test_callers_find_their_versions_whichever_scheduler_ends(mesh: Mesh) -> None:
    assert set_traffic(mesh, "1=60", "2=40", "--by", "header:x-user") == 0
    chosen = await factors(mesh, USERS)
    for _ in range(2):
        mesh.kill("nereid_scheduler")
        for _ in range(3):
            assert await factors(mesh, USERS) == chosen
    until(lambda: ask(mesh.http, "/v2/health/ready")[0] == HTTP_OK, "the mesh to be ready")
    assert await factors(mesh, USERS) == chosen


async def test_a_weighted_version_is_unloaded_under_load_and_no_request_fails(
    mesh: Mesh,
) -> None:
    assert set_traffic(mesh, "1=50", "2=50") == 0
    ended = asyncio.Event()
    seen: Counter[float] = Counter()

    async def load() -> None:
        while not ended.is_set():
            seen.update(await factors(mesh, [""] * 50))

    async def seen_all(expected: set[float]) -> None:
        seen.clear()
        async with asyncio.timeout(START_S):
            while not expected <= seen.keys():
                await asyncio.wait([loading], timeout=0.01)
                if loading.done():
                    await loading

    loading = asyncio.create_task(load())
    await seen_all({2.0, 3.0})
    for policy, expected in (({"specific": {"versions": [1]}}, {2.0}), ({"all": {}}, {2.0, 3.0})):
        config = json.dumps({"max_batch_size": 16, "version_policy": policy})
        body = json.dumps({"parameters": {"config": config}}).encode()
        status, text = await asyncio.to_thread(
            mesh.get, "/v2/repository/models/scaler/load", "POST", body
        )
        assert status == HTTP_OK, text
        await seen_all(expected)
    ended.set()
    await loading


async def test_what_cannot_be_set_is_refused_and_changes_nothing(
    mesh: Mesh, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set_traffic(mesh, "1=1", "2=1") == 0
    path = "/v2/repository/models/{}/traffic"
    for body in (
        b"",
        b"[]",
        b'{"weights": {"1": 0}}',
        *(b'{"weights": {"1": %b}}' % weight for weight in (b"-1", b"0.5", b"NaN", b"1e999")),
        *(b'{"weights": {"1": %b}}' % weight for weight in (b"true", b"1000001", b"null", b'"1"')),
        *(b'{"weights": {"%b": 1}}' % number for number in (b"0", b"-1", b"x", b"9" * 30)),
        json.dumps({"weights": dict.fromkeys(range(1, 66), 1)}).encode(),
        b'{"weights": {"1": 1}, "by": "x"}',
        b"\xff",
    ):
        status, text = mesh.get(path.format("scaler"), "POST", body)
        assert (status, b"the traffic is not valid" in text) == (400, True)
    assert mesh.get(path.format("unknown"))[0] == 404
    assert mesh.get(path.format("scaler"), "PUT")[0] == 405
    status, text = mesh.get(path.format("scaler"))
    assert json.loads(text) == {
        "model": "scaler",
        "traffic": {"weights": {"1": 1, "2": 1}},
        "source": "call",
    }
    assert set_traffic(mesh, "1=1", "7=1", "--by=tensor:id") == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        (
            "warning: version 7 has a weight but is not served (served: 1, 2): it has to be in the"
            " repository and in version_policy"
        ),
        "warning: version 1 has no input 'id' (it has INPUT0): its callers are not kept together",
    ]
    assert set_traffic(mesh, "--clear") == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "scaler: all requests without a version go to the latest"
    )
    assert set(await factors(mesh, [""] * 20)) == {3.0}
    assert command.main(["unknown", "-u", mesh.http]) == 2


async def test_a_file_and_a_configuration_have_traffic(models: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    text = '{\\"weights\\": {\\"1\\": 1}}'
    parameter = f'parameters {{ key: "traffic" value {{ string_value: "{text}" }} }}\n'
    for number, factor in FACTORS.items():
        save_scaler(root, "scaler", int(factor), CONFIG + parameter, number)
    file = tmp_path / "traffic.json"
    file.write_text("{}")
    with running(root, tmp_path / "log", f"--traffic-file={file}") as mesh:
        assert set(await factors(mesh, [""] * 20)) == {2.0}
        file.write_text('{"scaler": {"weights": {"2": 1}}}')
        until(lambda: b'"file"' in mesh.get("/v2/repository/models/scaler/traffic")[1], "the file")
        assert set(await factors(mesh, [""] * 20)) == {3.0}
        assert set_traffic(mesh, "1=1") == 2
        # A mistake changes nothing.
        file.write_text('{"scaler": {"weights": {"1": -1}}}')
        until(lambda: "keeping the previous" in (tmp_path / "log").read_text(), "the mistake")
        assert set(await factors(mesh, [""] * 20)) == {3.0}
        file.write_text("{}")
        until(lambda: b"configuration" in mesh.get("/v2/repository/models/scaler/traffic")[1], "it")
        assert set(await factors(mesh, [""] * 20)) == {2.0}
