"""Signals at bad moments, on the whole mesh."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, running, until

pytestmark = pytest.mark.slow

RESPONSE_S = 40.0
# More than any exit timeout here.
ENDLESS_TURNS = 200_000


async def infer(client: grpcclient.InferenceServerClient, model: str, array: Any) -> str:
    """'right', or the error's status; for models whose OUTPUT0 is a multiple of their input."""
    datatype, name, factor = ("INT64", "TURNS", 1) if model == "slow" else ("FP32", "INPUT0", 2)
    tensor = grpcclient.InferInput(name, array.shape, datatype)
    tensor.set_data_from_numpy(array)
    try:
        result = await asyncio.wait_for(client.infer(model, [tensor]), RESPONSE_S)
    except InferenceServerException as error:
        return f"{error.status()}: {error.message()}"
    assert (result.as_numpy("OUTPUT0") == factor * array).all()
    return "right"


def test_a_signal_while_nothing_runs_yet_leaves_nothing_behind(
    repository: Path, tmp_path: Path
) -> None:
    argv = [str(Path(sys.executable).with_name("nereid")), "serve"]
    process = subprocess.Popen(
        [*argv, f"--model-repository={repository}"], env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    # Not tempfile's own file, by which it finds out whether it may write there.
    until(lambda: list(tmp_path.glob("nereid-*")), "the runtime directory")
    process.send_signal(signal.SIGTERM)
    assert process.wait(RESPONSE_S) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "flags",
    [("--join=none",), pytest.param(("--grpc-engine=grpcio",), marks=pytest.mark.nightly)],
    ids=str,
)
def test_what_outlasts_the_exit_timeout_is_logged(
    repository: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    turns = {"name": "TURNS", "datatype": "INT64", "shape": [1], "data": [ENDLESS_TURNS]}
    body = json.dumps({"inputs": [turns]}).encode()

    async def scenario(mesh: Mesh) -> None:
        async with grpcclient.InferenceServerClient(mesh.grpc) as client:
            endless = np.array([ENDLESS_TURNS], np.int64)
            first = asyncio.create_task(infer(client, "slow", endless))
            over_http = asyncio.create_task(
                asyncio.to_thread(mesh.get, "/v2/models/slow/infer", "POST", body)
            )
            # What was sent before it has been accepted by then.
            assert await infer(client, "doubler", np.zeros((1, 8), np.float32)) == "right"
            await asyncio.to_thread(until, lambda: at_work(mesh), "the requests' start")
            mesh.process.send_signal(signal.SIGTERM)
            reported = "the server is shutting down"
            assert await first == f"StatusCode.UNAVAILABLE: {reported}"
            status, reply = await over_http
            assert (status, json.loads(reply)) == (503, {"error": reported})

    def at_work(mesh: Mesh) -> bool:
        """Whether the executor has spent processor time since it was first looked at."""
        (pid,) = mesh.children("nereid.services.executor")
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])
        return ticks - seen.setdefault(pid, ticks) > 20

    seen: dict[int, int] = {}
    with running(repository, tmp_path / "log", "--exit-timeout-secs=1", *flags) as mesh:
        asyncio.run(scenario(mesh))
        assert mesh.process.wait(RESPONSE_S) == 0
