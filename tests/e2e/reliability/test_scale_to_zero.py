"""A mesh whose executors come when requests wait, and go while requests run."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from tests.support.mesh.mesh import STOP_S, Mesh, until
from tests.support.models.e2e_models import save_multiplier

pytestmark = pytest.mark.slow

MODEL = "triple"
BODY = json.dumps(
    {"inputs": [{"name": "I", "datatype": "INT64", "shape": [1], "data": [5]}]}
).encode()


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.terminate()
        process.wait(STOP_S)


def infer(mesh: Mesh) -> int:
    return mesh.get(f"/v2/models/{MODEL}/infer", "POST", BODY)[0]


def waiting(mesh: Mesh) -> float:
    """By the metric that starts executors."""
    found = re.findall(r"^nereid_pending_requests\{.*\} (\d+)$", mesh.metrics(), re.MULTILINE)
    return sum(map(float, found))


def test_requests_wait_for_the_first_executor_and_outlive_the_last(tmp_path: Path) -> None:
    save_multiplier(tmp_path / "models", MODEL, 3, 'backend: "onnxruntime"')
    join = f"--scheduler-address=unix:{tmp_path}/join"
    command = [sys.executable, "-m", "nereid_executor", "--gpus=none", join]
    mesh = Mesh(tmp_path / "models", tmp_path / "log", "--executors=0", join)
    stop = Event()

    def load() -> list[int]:
        statuses = []
        while not stop.is_set():
            statuses.append(infer(mesh))
        return statuses

    def served(more: int) -> None:
        before = mesh.counts(MODEL)["success"]
        until(lambda: mesh.counts(MODEL)["success"] > before + more, "some load")

    with ThreadPoolExecutor(8) as threads, ended(mesh.process), contextlib.ExitStack() as stack:
        stack.callback(stop.set)

        def live() -> bool:
            with contextlib.suppress(OSError):
                return mesh.get("/v2/health/live")[0] == 200
            return False

        until(live, "the gateway")
        first = threads.submit(infer, mesh)
        until(lambda: waiting(mesh) == 1, "the request in the metrics")
        assert not first.done()
        with ended(subprocess.Popen(command)) as executor:
            assert first.result(60) == 200
            assert waiting(mesh) == 0
            clients = [threads.submit(load) for _ in range(4)]
            served(4)
            # Scaled to zero in the midst of it: what executes completes, the rest waits.
            executor.send_signal(signal.SIGTERM)
            executor.wait(STOP_S)
        until(lambda: waiting(mesh) == 4, "the requests that wait again")
        with ended(subprocess.Popen(command)):
            served(4)
            stop.set()
            statuses = [status for client in clients for status in client.result(60)]
    assert set(statuses) == {200}
    assert len(statuses) > 8
