"""Several schedulers share the models out: each may die, and no request is lost, or run twice by a
client's doing; what it served goes on elsewhere without being loaded again.
"""

from __future__ import annotations

import asyncio
import collections
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException

from nereid_scheduler.control.shards.members.ownership import owner_of
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.e2e_models import save_scaler

pytestmark = pytest.mark.slow

SCHEDULER = "nereid_scheduler"
NAMES = ("scheduler-0", "scheduler-1")
CLIENTS = 16
RESPONSE_S = 60.0
FACTORS = {"times_2": 2, "times_3": 3, "times_5": 5, "times_7": 7}
# By model, what it makes of a value.
EXPECTED = {**FACTORS, "times_6": 6, "counted": 11, "nested": 55}

_CONFIG = """
max_batch_size: 16
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [8] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [8] }}
{}
"""
_PYTHON = 'backend: "python"\ninstance_group [{ count: 1 kind: KIND_CPU }]'
_ENSEMBLE = """
platform: "ensemble"
ensemble_scheduling {
  step { model_name: "times_2" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "between" } }
  step { model_name: "times_3" model_version: -1
    input_map { key: "INPUT0" value: "between" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
}
"""
_COUNTED = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(args["model_repository"], "..", "initialized"), "a") as counted:
            counted.write("x")

    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(each, "INPUT0").as_numpy() for each in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value * 11)]) for value in values
        ]
"""
# Calls models that other schedulers have.
_NESTED = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(each) for each in requests]

    def respond(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        for model in ("times_5", "counted"):
            inner = pb_utils.InferenceRequest(
                model_name=model, requested_output_names=["OUTPUT0"], inputs=[tensor]
            )
            response = inner.exec()
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            value = pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy()
            tensor = pb_utils.Tensor("INPUT0", value)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value)])
"""


def owner(model: str) -> str | None:
    """The scheduler that has it while both live; an ensemble's models are with it."""
    grouped = model in ("times_2", "times_3", "times_6")
    return owner_of("times_2" if grouped else model, NAMES)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for name, factor in FACTORS.items():
        save_scaler(root, name, factor, _CONFIG.format("dynamic_batching {}"))
    (root / "times_6" / "1").mkdir(parents=True)
    (root / "times_6" / "config.pbtxt").write_text(_CONFIG.format(_ENSEMBLE))
    for name, text in (("counted", _COUNTED), ("nested", _NESTED)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(text)
        (root / name / "config.pbtxt").write_text(_CONFIG.format(_PYTHON))
    return root


async def ask(client: grpcclient.InferenceServerClient, model: str, value: int) -> str:
    """Send one request that nobody else sends; "right", or the error."""
    array = np.full((1, 8), value, np.float32)
    tensor = grpcclient.InferInput("INPUT0", [1, 8], "FP32")
    tensor.set_data_from_numpy(array)
    try:
        sent = client.infer(model, [tensor], request_id=f"{model}-{value}")
        result = await asyncio.wait_for(sent, RESPONSE_S)
    except InferenceServerException as error:
        return f"{error.status()} {error.message()}"
    assert result.get_response().id == f"{model}-{value}"
    assert (result.as_numpy("OUTPUT0") == EXPECTED[model] * array).all()
    return "right"


async def load(mesh: Mesh, victim: str, each: int) -> collections.Counter[tuple[str, str]]:
    """So many requests to each model, whose clients ask no other; the scheduler is killed half way.
    By model: how many had which outcome.
    """
    values = {model: iter(range(each)) for model in EXPECTED}
    outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
    halved = asyncio.Event()

    async def one_client(model: str) -> None:
        async with grpcclient.InferenceServerClient(mesh.grpc) as client:
            for value in values[model]:
                outcomes[model, await ask(client, model, value)] += 1
                if outcomes.total() >= each * len(EXPECTED) // 2:
                    halved.set()

    async def trouble() -> None:
        await halved.wait()
        os.kill(process_of(mesh, victim), signal.SIGKILL)

    models = [*EXPECTED] * (CLIENTS // len(EXPECTED))
    await asyncio.gather(trouble(), *map(one_client, models))
    return outcomes


def process_of(mesh: Mesh, name: str) -> int:
    """The process of the scheduler of this name."""
    (pid,) = (
        pid
        for pid in mesh.children(SCHEDULER)
        if f"--scheduler-name={name}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return pid


def has_both(mesh: Mesh, gateways: int) -> bool:
    """Whether every gateway is connected to both, and both have told it so."""
    linked = re.findall(r"^nereid_gateway_linked\S* (\d+)$", mesh.metrics(), re.MULTILINE)
    return linked == ["2"] * gateways and mesh.get("/v2/health/ready")[0] == 200


@pytest.fixture(scope="module")
def mesh(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    log = tmp_path_factory.mktemp("mesh") / "log"
    flags = ("--schedulers=2", "--gateways=2")
    with running(models, log, *flags, executors=2) as started:
        until(lambda: has_both(started, 2), "all models")
        yield started


def test_each_scheduler_killed_under_load_costs_no_response(mesh: Mesh, models: Path) -> None:
    assert {owner(model) for model in EXPECTED} == set(NAMES)
    # Not in the folder of the model: the second instance would find it there when it is loaded, and
    # be loaded anew later since it has changed.
    initialized = models / "initialized"
    until(lambda: initialized.read_text() == "xx", "an instance at each executor")
    for victim in NAMES:
        until(lambda: has_both(mesh, 2), "both schedulers")
        outcomes = asyncio.run(load(mesh, victim, 70))
        assert outcomes == {(model, "right"): 70 for model in EXPECTED}
    # Whoever took it over found it loaded.
    assert initialized.read_text() == "xx"
    assert "is adopted" in mesh.log.read_text()
