"""Processes die and drain under load: every request gets one correct response."""

import asyncio
import collections
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, running

pytestmark = pytest.mark.slow

CLIENTS = 64
REQUESTS = 2000
# No single request may take longer than this, whatever dies.
RESPONSE_S = 40.0


async def ask(client: grpcclient.InferenceServerClient, value: int) -> str:
    """Send one request that nobody else sends; 'right', or the error's status."""
    array = np.full((1, 8), value, np.float32)
    tensor = grpcclient.InferInput("INPUT0", [1, 8], "FP32")
    tensor.set_data_from_numpy(array)
    try:
        result = await asyncio.wait_for(
            client.infer("doubler", [tensor], request_id=str(value)), RESPONSE_S
        )
    except InferenceServerException as error:
        return str(error.status())
    assert result.get_response().id == str(value)
    assert (result.as_numpy("OUTPUT0") == 2 * array).all()
    return "right"


async def load(
    mesh: Mesh, half_way: Callable[[], Awaitable[None]], requests: int = REQUESTS
) -> collections.Counter[str]:
    """So many requests by 64 clients at once; half_way runs when half have responses."""
    values = iter(range(requests))
    outcomes: collections.Counter[str] = collections.Counter()
    halved = asyncio.Event()

    async def one_client() -> None:
        async with grpcclient.InferenceServerClient(mesh.grpc) as client:
            for value in values:
                outcomes[await ask(client, value)] += 1
                if outcomes.total() >= requests // 2:
                    halved.set()

    async def trouble() -> None:
        await halved.wait()
        await half_way()

    await asyncio.gather(trouble(), *(one_client() for _ in range(CLIENTS)))
    return outcomes


@pytest.mark.parametrize(
    "flag",
    [
        "--join=scheduler",
        pytest.param("--join=none", marks=pytest.mark.nightly),
        pytest.param("--gateways=2", marks=pytest.mark.nightly),
    ],
)
def test_sigterm_under_load_completes_everything_accepted(
    repository: Path, tmp_path: Path, flag: str
) -> None:
    with running(repository, tmp_path / "log", flag) as mesh:

        async def terminate() -> None:
            mesh.process.send_signal(signal.SIGTERM)

        outcomes = asyncio.run(load(mesh, terminate))
        # What comes after the signal is refused or finds no server; nothing hangs or goes wrong.
        assert set(outcomes) <= {"right", "StatusCode.UNAVAILABLE"}
        assert outcomes["right"] >= REQUESTS // 2
        assert mesh.process.wait(45) == 0
