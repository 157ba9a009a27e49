"""Executors die while batches wait at their instances: each request has its one response."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as grpcclient
from onnx import TensorProto
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.e2e_models import save_identity
from tests.support.models.python_models import AT_MOST_ONCE

pytestmark = pytest.mark.slow

EXECUTOR = "nereid.services.executor"
# One request to a batch.
CONFIG = "max_batch_size: 1\ninstance_group [{ count: 1 kind: KIND_CPU }]\n"
REQUESTS = 8
LIMIT_S = 60.0
# Batches that are sent too slowly for one to wait, on a busy machine.
ATTEMPTS = 5


async def infer(client: grpcclient.InferenceServerClient, model: str, value: int) -> str:
    """One request; 'right', or the error's status."""
    tensor = grpcclient.InferInput("INPUT0", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.full((1, 1), value, np.float32))
    try:
        async with asyncio.timeout(LIMIT_S):
            result = await client.infer(model, [tensor])
    except InferenceServerException as error:
        return str(error.status())
    assert result.as_numpy("OUTPUT0").tolist() == [[value]]
    return "right"


def metric(mesh: Mesh, name: str, model: str) -> int:
    start = f'{name}{{model="{model}"'
    lines = [line for line in mesh.metrics().splitlines() if line.startswith(start)]
    return round(sum(float(line.rpartition(" ")[2]) for line in lines))


async def kill_with_requests(mesh: Mesh, model: str, sent: int) -> Counter[str]:
    """Stop the executor, send requests until so many batches are there, and kill it."""
    async with grpcclient.InferenceServerClient(mesh.grpc) as client:
        for value in range(20):
            assert await infer(client, model, value) == "right"
        for _ in range(ATTEMPTS):
            before = metric(mesh, "nereid_batches_closed_total", model)
            with mesh.held(EXECUTOR):
                requests = [
                    asyncio.create_task(infer(client, model, value)) for value in range(REQUESTS)
                ]
                pending = REQUESTS - 1

                def all_are_queued(pending: int = pending) -> bool:
                    return metric(mesh, "nv_inference_pending_request_count", model) == pending

                await asyncio.to_thread(
                    until, all_are_queued, "all but the running one to be queued"
                )
                if metric(mesh, "nereid_batches_closed_total", model) - before == sent:
                    mesh.kill(EXECUTOR)
                    return Counter(await asyncio.gather(*requests))
            assert Counter(await asyncio.gather(*requests)) == {"right": REQUESTS}
        raise AssertionError(f"there were never {sent} batches at the instance")


def test_each_request_has_one_response_though_its_executor_is_killed(tmp_path: Path) -> None:
    save_identity(tmp_path, "often", TensorProto.FLOAT, CONFIG)
    save_identity(tmp_path, "once", TensorProto.FLOAT, CONFIG + AT_MOST_ONCE)
    with running(tmp_path, tmp_path / "log") as mesh:
        # One batch executes, one waits, which has had no attempt when it runs again.
        assert asyncio.run(kill_with_requests(mesh, "often", 2)) == {"right": REQUESTS}
        assert metric(mesh, "nereid_retries_total", "often") == 1
        # What may have begun fails; none waits, since nobody could say whether that had begun.
        assert asyncio.run(kill_with_requests(mesh, "once", 1)) == {
            "right": REQUESTS - 1,
            "StatusCode.ABORTED": 1,
        }
        _, reply = mesh.get("/v2/models/once/stats")
        (stats,) = json.loads(reply)["model_stats"]
        assert int(stats["inference_stats"]["fail"]["count"]) == 1
