"""Copies of requests go to shadows that differ, hang, crash, leak or are slow: the report says so,
and no client notices anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import tritonclient.grpc as grpcsync
import tritonclient.grpc.aio as grpcclient
import tritonclient.utils.shared_memory as shm
from onnx import TensorProto
from tritonclient.utils import InferenceServerException

from nereid_explain import rollout, traffic
from nereid_explain import shadow as command
from tests.support.mesh.mesh import Mesh, has_ended, running, until
from tests.support.models import accumulators, python_models
from tests.support.models.e2e_models import save_identity, save_scaler

pytestmark = pytest.mark.slow

CONFIG = "max_batch_size: 16\ndynamic_batching {}\nversion_policy { all {} }\n"
SHADY = """
backend: "python"
max_batch_size: 16
input { name: "INPUT0" data_type: TYPE_FP32 dims: [8] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }
instance_group [{ count: 1 kind: KIND_CPU }]
"""
CACHE = f"--cache-config=local,size={1 << 20}"
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
PLAN = ("--to", "2", "--steps", "50,100", "--every", "1s", "--if", "difference<1e-2")
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 16
input { name: "INPUT0" data_type: TYPE_FP32 dims: [8] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [8] }
ensemble_scheduling { step { model_name: "scaler" model_version: 3
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } }
"""
# It calls a model, and sends responses without end if it is decoupled.
CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            call = pb_utils.InferenceRequest(
                model_name="plain", requested_output_names=["OUTPUT0"], inputs=[tensor]
            )
            outputs = call.exec().output_tensors()
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
ENDLESS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            sender = request.get_response_sender()
            while not sender.is_cancelled():
                tensor = pb_utils.Tensor("OUTPUT0", array * 2)
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
IDENTITY = """
input { name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }
max_batch_size: 16
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for version, factor in ((1, 2), (2, 3), (3, 2)):
        save_scaler(root, "scaler", factor, CONFIG, version)
    save_scaler(root, "plain", 2, CONFIG)
    save_scaler(root, "tripled", 3, CONFIG)
    python_models.save(root, "misbehaving", SHADY)
    save_scaler(root, "cached", 2, "max_batch_size: 16\nresponse_cache { enable: true }\n")
    (root / "ensemble" / "1").mkdir(parents=True)
    (root / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    for name, source in (("caller", CALLER), ("endless", ENDLESS)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(source)
        (root / name / "config.pbtxt").write_text(SHADY + DECOUPLED * (name == "endless"))
    for name in ("identity", "other_identity"):
        save_identity(root, name, TensorProto.FLOAT, IDENTITY)
    for name in ("repeat", "other_repeat"):
        python_models.save(root, "repeat", python_models.REPEAT, name)
    for prefix in ("", "other_"):
        accumulators.save(root, "dyna_sequence", "onnxruntime", prefix)
    return root


@pytest.fixture(scope="module")
def mesh(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    log = tmp_path_factory.mktemp("log") / "log"
    with running(models, log, "--max-queue-size=64", CACHE, "--allow-client-shm=true") as mesh:
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


def is_copied(mesh: Mesh, model: str) -> bool:
    _, reply = mesh.get(f"/v2/repository/models/{model}/shadow")
    return bool(json.loads(reply)["report"])


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
        b'{"model":"scaler","shadow":null,"source":null,"problem":null,"compared":0,"differing":0,"report":null}'
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


@contextlib.contextmanager
def copied(mesh: Mesh, model: str, to: str, *more: str) -> Iterator[None]:
    assert shadow(mesh, "set", model, "--to", to, *more) == 0
    try:
        until(lambda: is_copied(mesh, model), "the gateway's report")
        yield
    finally:
        assert shadow(mesh, "clear", model) == 0


def await_compared(mesh: Mesh, model: str) -> Mapping[str, Any]:
    until(lambda: report(mesh, model)["compared"], f"comparisons: {report(mesh, model)}")
    return report(mesh, model)


async def test_sequences_are_copied_whole(mesh: Mesh) -> None:
    async def add(client: grpcclient.InferenceServerClient, number: int, **flags: Any) -> int:
        tensor = grpcclient.InferInput("INPUT", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.full((1, 1), number, np.int32))
        response = await client.infer("dyna_sequence", [tensor], **flags)
        return int(response.as_numpy("OUTPUT")[0, 0])

    async with client_of(mesh) as client:
        # Its beginning is not copied, so that its end is not either.
        await add(client, 1, sequence_id=100, sequence_start=True)
        with copied(mesh, "dyna_sequence", "model:other_dyna_sequence", "--rules", "*: exact"):
            await add(client, 1, sequence_id=100, sequence_end=True)
            for sequence in range(1, 6):
                for step in range(5):
                    flags = {"sequence_start": step == 0, "sequence_end": step == 4}
                    await add(client, step, sequence_id=sequence, **flags)
            found = await_compared(mesh, "dyna_sequence")
    # A sum with a gap would differ. A sequence may find the shadow busy.
    assert found["differing"] == 0
    assert found["not_compared"].keys() <= {
        "the shadow was busy",
        "a request of its sequence was not copied",
        "its sequence began at another gateway, or before the shadow was set",
    }


async def test_sequences_over_several_gateways_do_not_differ(models: Path, tmp_path: Path) -> None:
    async def add(address: str, sequence: int, step: int) -> None:
        tensor = grpcclient.InferInput("INPUT", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.full((1, 1), step + 1, np.int32))
        # Each connection goes to any of the gateways.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpcclient.InferenceServerClient(address, channel_args=options) as client:
            flags = {"sequence_start": step == 0, "sequence_end": step == 3}
            response = await client.infer("dyna_sequence", [tensor], sequence_id=sequence, **flags)
        assert response.as_numpy("OUTPUT")[0, 0] >= 1

    with (
        running(models, tmp_path / "log", "--gateways=2") as mesh,
        copied(mesh, "dyna_sequence", "model:other_dyna_sequence", "--rules", "*: exact"),
    ):
        sequence = 0
        elsewhere = 'reason="its sequence began at another gateway'
        while sequence < 20 or elsewhere not in mesh.metrics():
            sequence += 1
            for step in range(4):
                # Ids are used again.
                await add(mesh.grpc, 1 + sequence % 2, step)
        until(lambda: totals(mesh, "dyna_sequence")[0], "comparisons")
        assert totals(mesh, "dyna_sequence")[1] == 0, report(mesh, "dyna_sequence")


async def test_a_sequence_that_is_given_up_leaves_its_slot(mesh: Mesh) -> None:
    def live(model: str) -> int:
        found = re.search(rf'nereid_sequences{{[^}}]*model="{model}"[^}}]*}} (\d+)', mesh.metrics())
        return int(found[1]) if found else 0

    async def add(
        client: grpcclient.InferenceServerClient, model: str, sequence: int, **flags: bool
    ) -> int:
        tensor = grpcclient.InferInput("INPUT", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.full((1, 1), 1, np.int32))
        response = await client.infer(model, [tensor], sequence_id=sequence, **flags)
        return int(response.as_numpy("OUTPUT")[0, 0])

    async with client_of(mesh) as client:
        # The ids of the copies are not those of the shadow's own clients.
        own = await add(client, "other_dyna_sequence", 1, sequence_start=True)
        with copied(mesh, "dyna_sequence", "model:other_dyna_sequence"):
            await add(client, "dyna_sequence", 1, sequence_start=True)
            await_compared(mesh, "dyna_sequence")
            assert live("other_dyna_sequence") == 2
        until(lambda: live("other_dyna_sequence") == 1, "the slot", 20)
        assert await add(client, "other_dyna_sequence", 1, sequence_end=True) != own
        await add(client, "dyna_sequence", 1, sequence_end=True)


async def test_streams_are_compared_with_all_their_responses(mesh: Mesh) -> None:
    tensors = [grpcclient.InferInput(name, [1], "INT32") for name in ("COUNT", "SIZE")]
    for tensor, value in zip(tensors, (3, 2), strict=True):
        tensor.set_data_from_numpy(np.array([value], np.int32))
    mode = grpcclient.InferInput("MODE", [1], "BYTES")
    mode.set_data_from_numpy(np.array([b"then_end"], np.object_))

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "repeat", "inputs": [*tensors, mode]}

    with copied(mesh, "repeat", "model:other_repeat"):
        async with client_of(mesh) as client:
            seen = [error async for _, error in client.stream_infer(requests())]
        assert seen == [None] * 3
        found = await_compared(mesh, "repeat")
    assert (found["compared"], found["differing"]) == (1, 0)


async def test_tensors_in_shared_memory_are_compared(mesh: Mesh) -> None:
    array = np.arange(1 << 18, dtype=np.float32)[None]
    tensor = grpcclient.InferInput("INPUT0", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    with copied(mesh, "identity", "model:other_identity"):
        async with client_of(mesh) as client:
            for _ in range(10):
                response = await client.infer("identity", [tensor])
                assert np.array_equal(response.as_numpy("OUTPUT0"), array)
        found = await_compared(mesh, "identity")
    assert found["differing"] == 0
    # Copies of more than 16 MiB are not sent.
    array = np.zeros((1, 5 << 20), np.float32)
    tensor = grpcclient.InferInput("INPUT0", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    with copied(mesh, "identity", "model:other_identity"):
        async with client_of(mesh) as client:
            await client.infer("identity", [tensor])
        until(lambda: report(mesh, "identity")["not_compared"], "the refusal")
        assert report(mesh, "identity")["not_compared"] == {
            "the request and its responses were too large": 1
        }


@pytest.mark.parametrize(
    ("model", "to"),
    [
        ("plain", "model:ensemble"),
        ("ensemble", "model:plain"),
        ("plain", "model:cached"),
        # Also of requests whose response was in the cache.
        ("cached", "model:plain"),
        ("caller", "model:plain"),
        ("scaler", "model:caller"),
    ],
)
async def test_kinds_of_models_are_compared(mesh: Mesh, model: str, to: str) -> None:
    await send(mesh, model, 4)
    with copied(mesh, model, to):
        await send(mesh, model, 16)
        found = await_compared(mesh, model)
    assert found["differing"] == 0, found


async def test_a_shadow_that_never_ends_is_given_up(mesh: Mesh) -> None:
    with copied(mesh, "plain", "model:endless", "--copy-timeout", "5"):
        await send(mesh, "plain", 8)
        given_up = {"the request and its responses were too large", "the copy timed out"}
        until(lambda: given_up & report(mesh, "plain")["not_compared"].keys(), "the end")
        await send(mesh, "plain", 8)


async def test_regions_of_clients_are_read_and_not_written(mesh: Mesh) -> None:
    array = np.arange(8, dtype=np.float32)[None]
    size = array.nbytes
    region = shm.create_shared_memory_region("both", "/shadows-both", 2 * size)
    try:
        shm.set_shared_memory_region(region, [array])
        with grpcsync.InferenceServerClient(mesh.grpc) as client:
            client.register_system_shared_memory("both", "/shadows-both", 2 * size)
            tensor = grpcsync.InferInput("INPUT0", [1, 8], "FP32")
            tensor.set_shared_memory("both", size)
            output = grpcsync.InferRequestedOutput("OUTPUT0")
            output.set_shared_memory("both", size, offset=size)
            with copied(mesh, "plain", "model:misbehaving"):
                for _ in range(8):
                    client.infer("plain", [tensor], outputs=[output])
                found = await_compared(mesh, "plain")
            assert found["differing"] == 0, found
            # Version 2 triples it.
            with copied(mesh, "plain", "model:tripled"):
                client.infer("plain", [tensor], outputs=[output])
                until(lambda: report(mesh, "plain")["differing"], "a difference")
                seen = shm.get_contents_as_numpy(region, np.float32, [2, 8])
                assert np.array_equal(seen[1:], array * 2)
            client.unregister_system_shared_memory("both")
    finally:
        shm.destroy_shared_memory_region(region)


async def test_another_server_gets_copies(mesh: Mesh) -> None:
    with copied(mesh, "plain", f"url:grpc://{mesh.grpc}/scaler"):
        await send(mesh, "plain", 8)
        until(lambda: report(mesh, "plain")["compared"] == 8, "comparisons")
        assert report(mesh, "plain")["differing"] == 0
    with copied(mesh, "plain", "url:grpc://127.0.0.1:1/scaler", "--copy-timeout", "0.2"):
        await send(mesh, "plain", 4)
        until(lambda: sum(report(mesh, "plain")["not_compared"].values()) == 4, "the failures")


def test_what_is_not_valid_is_refused(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    assert shadow(mesh, "set", "plain", "--to", "model:plain") == 2
    assert "no shadow of itself" in capsys.readouterr().err
    assert shadow(mesh, "set", "missing", "--to", "version:1") == 2
    assert "unknown model" in capsys.readouterr().err
    status, reply = mesh.get("/v2/repository/models/plain/shadow", "POST", b'{"to": "nowhere"}')
    assert (status, b"version:NUMBER" in reply) == (400, True)
    with pytest.raises(SystemExit):
        shadow(mesh, "set", "plain", "--to", "nowhere")


async def test_a_rollout_goes_back_if_its_shadow_differs(
    mesh: Mesh, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = asyncio.Event()

    async def load() -> None:
        tensor = grpcclient.InferInput("INPUT0", [1, 8], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 8), np.float32))
        async with client_of(mesh) as client:
            while not loaded.is_set():
                await client.infer("scaler", [tensor])

    task = asyncio.create_task(load())
    try:
        with copied(mesh, "scaler", "version:2"):
            code = await asyncio.to_thread(rollout.main, ["scaler", *PLAN, "-u", mesh.http])
            assert code == 1
        assert "difference<1e-2 is broken" in capsys.readouterr().out
        with copied(mesh, "scaler", "version:3"):
            plan = [each.replace("2", "3") if each == "2" else each for each in PLAN]
            code = await asyncio.to_thread(rollout.main, ["scaler", *plan, "-u", mesh.http])
            assert code == 0
    finally:
        loaded.set()
        await task
        traffic.main(["scaler", "1=1", "-u", mesh.http])


async def test_shadows_of_the_configuration_and_of_a_file(tmp_path: Path) -> None:
    root = tmp_path / "models"
    text = json.dumps({"to": "version:2", "rules": "*: exact"}).replace('"', '\\"')
    parameter = f'parameters {{ key: "shadow" value {{ string_value: "{text}" }} }}\n'
    parameter += (
        'parameters { key: "traffic" value { string_value: "{\\"weights\\": {\\"1\\": 1}}" } }'
    )
    for version, factor in ((1, 2), (2, 3)):
        save_scaler(root, "scaler", factor, CONFIG + parameter, version)
    file = tmp_path / "traffic.json"
    file.write_text("{}")

    def shown(mesh: Mesh) -> tuple[str, float, str | None]:
        document = json.loads(mesh.get("/v2/repository/models/scaler/shadow")[1])
        return document["source"], document["shadow"]["percent"], document["problem"]

    with running(root, tmp_path / "log", f"--traffic-file={file}") as mesh:
        assert shown(mesh) == ("configuration", 100, None)
        await send(mesh, "scaler", 8)
        until(lambda: report(mesh, "scaler")["differing"], "differences")
        # A call counts first, and a shadow of 0 % copies nothing.
        with copied(mesh, "scaler", "version:2", "--percent", "0"):
            await send(mesh, "scaler", 8)
            assert (shown(mesh), report(mesh, "scaler")["compared"]) == (("call", 0, None), 0)
        assert shown(mesh)[0] == "configuration"
        file.write_text('{"scaler": {"shadow": {"to": "version:3"}}}')
        until(lambda: shown(mesh)[0] == "file", "the file")
        assert shown(mesh)[2] == "version '3' of model 'scaler' is not ready: nothing is compared"
        assert shadow(mesh, "set", "scaler", "--to", "version:2") == 2
        await send(mesh, "scaler", 8)
        until(lambda: report(mesh, "scaler")["not_compared"], "copies")
        assert report(mesh, "scaler")["not_compared"].keys() <= {
            "the shadow was not ready",
            "the process that compares had not started",
        }
        assert report(mesh, "scaler")["differing"] == 0


async def test_shadows_outlive_their_scheduler(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(models, tmp_path / "log", "--schedulers=2", "--gateways=2") as mesh:
        with copied(mesh, "plain", "model:misbehaving"):
            for _ in range(2):
                mesh.kill("nereid_scheduler")
                until(lambda: mesh.get("/v2/health/ready")[0] == 200, "the mesh")
                await send(mesh, "plain", 8)
                assert shadow(mesh, "report", "plain") == 0
                assert "100% to model:misbehaving" in capsys.readouterr().out
        assert shadow(mesh, "report", "plain") == 0
        assert "no shadow" in capsys.readouterr().out


class Load:
    """Clients that send requests one after the other. Nothing but a broken connection fails one."""

    def __init__(self, mesh: Mesh, model: str) -> None:
        self._mesh = mesh
        self._model = model
        self.responses = self.broken = 0
        self._ends = False

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._send()) for _ in range(2)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ends = True
        await asyncio.gather(*self._tasks)

    async def reach(self, more: int) -> None:
        """Wait for so many responses more."""
        goal = self.responses + more
        await asyncio.to_thread(until, lambda: self.responses >= goal, "responses")

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Go on until a condition holds."""
        await asyncio.to_thread(until, condition, what)

    async def exceed(self, count: Callable[[], int], what: str) -> None:
        """Go on until a count has grown."""
        before = count()
        await self.until(lambda: count() > before, what)

    async def await_outcomes(self) -> Mapping[str, Any]:
        """Wait until the only gateway's report has an outcome for each response; the report."""

        def have_come() -> bool:
            counts = report(self._mesh, self._model)
            number: int = counts["compared"] + sum(counts["not_compared"].values())
            return number == self.responses

        await self.until(have_come, "all outcomes")
        assert self.broken == 0
        return report(self._mesh, self._model)

    async def _send(self) -> None:
        array = np.full((1, 8), 1.5, np.float32)
        tensor = grpcclient.InferInput("INPUT0", [1, 8], "FP32")
        tensor.set_data_from_numpy(array)
        async with client_of(self._mesh) as client:
            while not self._ends:
                try:
                    response = await client.infer(self._model, [tensor])
                except InferenceServerException as error:
                    if error.status() != "StatusCode.UNAVAILABLE":
                        raise
                    self.broken += 1
                    continue
                assert np.array_equal(response.as_numpy("OUTPUT0"), array * 2)
                self.responses += 1


def totals(mesh: Mesh, model: str) -> tuple[int, int]:
    """Requests that all gateways have compared, and those that differ."""
    document = json.loads(mesh.get(f"/v2/repository/models/{model}/shadow")[1])
    return document["compared"], document["differing"]


async def test_a_gateway_that_is_killed_comes_back_with_its_shadow(
    models: Path, tmp_path: Path
) -> None:
    with (
        running(models, tmp_path / "log", "--gateways=2") as mesh,
        copied(mesh, "plain", "model:tripled"),
    ):
        async with Load(mesh, "plain") as load:
            await load.until(lambda: totals(mesh, "plain")[0], "comparisons")
            before = totals(mesh, "plain")[0]
            for pid in mesh.children("nereid_gateway"):
                find = partial(children_of, pid, "nereid_gateway.extras.shadows")
                await load.until(find, "its process that compares")
                (reporter,) = find()
                os.kill(pid, signal.SIGKILL)
                # Its process that compares does not outlive it.
                await load.until(partial(has_ended, reporter), "its process to end")
                await load.until(lambda: len(mesh.children("nereid_gateway")) == 2, "another")
                await load.reach(20)
            await load.until(lambda: totals(mesh, "plain")[0] > before, "further comparisons")
        compared, differing = totals(mesh, "plain")
        # Each of the shadow's responses differs, and none counts twice.
        assert before < compared == differing <= load.responses


async def test_models_share_a_shadow_and_change_it_under_load(mesh: Mesh) -> None:
    with (
        copied(mesh, "plain", "model:tripled"),
        copied(mesh, "cached", "model:tripled"),
    ):
        async with Load(mesh, "plain") as one, Load(mesh, "cached") as other:
            await one.until(lambda: report(mesh, "plain")["compared"], "comparisons")
            await other.until(lambda: report(mesh, "cached")["compared"], "comparisons")
        for load in (one, other):
            found = await load.await_outcomes()
            assert found["differing"] == found["compared"] > 0
        async with Load(mesh, "plain") as load:
            await load.reach(20)
            with copied(mesh, "plain", "model:ensemble"):
                await load.until(lambda: report(mesh, "plain")["compared"], "comparisons")
                found = report(mesh, "plain")
        # None of the former shadow's responses counts.
        assert (found["differing"], found["compared"] > 0) == (0, True)


async def test_a_target_is_unloaded_and_loaded_under_load(models: Path, tmp_path: Path) -> None:
    flags = "--model-control-mode=explicit", "--load-model=plain", "--load-model=tripled"
    not_ready = "the shadow was not ready"
    with (
        running(models, tmp_path / "log", *flags) as mesh,
        copied(mesh, "plain", "model:tripled"),
    ):

        def act(action: str) -> None:
            assert mesh.get(f"/v2/repository/models/tripled/{action}", "POST")[0] == 200

        async with Load(mesh, "plain") as load:
            for _ in range(3):
                await load.exceed(lambda: report(mesh, "plain")["compared"], "comparisons")
                await asyncio.to_thread(act, "unload")
                await load.exceed(
                    lambda: report(mesh, "plain")["not_compared"].get(not_ready, 0), "copies"
                )
                await asyncio.to_thread(act, "load")
        found = await load.await_outcomes()
        # Copies that meet the unload are no differences: those have one kind.
        assert found["differing"] == found["compared"]
        (difference,) = found["models"][0]["differences"]
        assert difference["kind"] == "value"


def children_of(pid: int, module: str) -> list[int]:
    """Process ids of a process's children that run a module."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = (child for task in tasks for child in (task / "children").read_text().split())
    return [
        int(child)
        for child in children
        if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
    ]
