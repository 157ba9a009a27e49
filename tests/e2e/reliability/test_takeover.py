"""A model that takes seconds to load, while the mesh's only scheduler is killed: its executor keeps
it, and the next scheduler has it at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import python_models

pytestmark = pytest.mark.slow

LIMIT_S = 60.0
# Of a request that is in flight when the scheduler is killed.
RUN_S = 1.0

_log = logging.getLogger(__name__)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def _double(mesh: Mesh, name: str, seconds: float = 0.0) -> bool:
    """One request by a client of its own; False: it failed."""
    inputs = []
    for tensor, value in (("VALUE", 3.0), ("SECONDS", seconds)):
        inputs.append(grpcclient.InferInput(tensor, [1], "FP32"))
        inputs[-1].set_data_from_numpy(np.array([value], np.float32))
    async with grpcclient.InferenceServerClient(mesh.grpc) as client:
        try:
            async with asyncio.timeout(LIMIT_S):
                result = await client.infer("slow_start", inputs, request_id=name)
        except InferenceServerException:
            return False
        return bool(result.as_numpy("DOUBLE").tolist() == [6.0])


async def _until_served(mesh: Mesh) -> float:
    """Requests until one succeeds; how long that took, in seconds."""
    begun = time.monotonic()
    for number in itertools.count():
        if await _double(mesh, f"probe {number}"):
            break
        await asyncio.sleep(0.02)
    return time.monotonic() - begun


def test_a_killed_scheduler_costs_no_load_and_no_request(tmp_path: Path) -> None:
    directory = python_models.save(tmp_path / "models", "slow_start", python_models.SLOW_START)

    async def scenario(mesh: Mesh) -> None:
        requests = [asyncio.create_task(_double(mesh, f"r{n}", RUN_S)) for n in range(3)]
        await asyncio.to_thread(until, lambda: _lines(directory / "runs"), "a run")
        mesh.kill("nereid.services.scheduler")
        _log.info("served again after %.2f s", await _until_served(mesh))
        assert await asyncio.gather(*requests) == [True] * 3

    with running(tmp_path / "models", tmp_path / "log", "--join=none") as mesh:
        asyncio.run(scenario(mesh))
        assert len(_lines(directory / "starts")) == 1
        # What was executing when the scheduler died has not run again.
        runs = Counter(each for each in _lines(directory / "runs") if each.startswith("r"))
        assert runs == dict.fromkeys(("r0", "r1", "r2"), 1)


def test_a_killed_process_of_gateway_and_scheduler_costs_no_load(tmp_path: Path) -> None:
    directory = python_models.save(tmp_path / "models", "slow_start", python_models.SLOW_START)
    with running(tmp_path / "models", tmp_path / "log", "--join=scheduler") as mesh:
        mesh.kill("nereid.cli.serve.joined")
        _log.info("served again after %.2f s", asyncio.run(_until_served(mesh)))
        assert len(_lines(directory / "starts")) == 1
