"""`--join all`: an executor in the gateway's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.support.mesh.mesh import Mesh, running
from tests.support.models.e2e_models import make_repository

pytestmark = pytest.mark.slow

JOINED = "nereid_mesh.serve.joined"
# So that no machine is too slow for the event loop to execute what is small.
PATIENT = "--inline-execution-us=100000"

PYTHON_MODEL = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        pid = np.array([os.getpid()], np.int64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pid)]) for _ in requests]
"""
PYTHON_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT64 dims: [1] }
output { name: "OUT" data_type: TYPE_INT64 dims: [1] }
instance_group [{ kind: KIND_CPU }]
"""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("all")
    repository = make_repository(folder / "models")
    (repository / "pid" / "1").mkdir(parents=True)
    (repository / "pid" / "1" / "model.py").write_text(PYTHON_MODEL)
    (repository / "pid" / "config.pbtxt").write_text(PYTHON_CONFIG)
    with running(repository, folder / "log", "--join=all", PATIENT) as mesh:
        yield mesh


def tensor(client: Any, name: str, array: np.ndarray[Any, Any], datatype: str) -> Any:
    made = client.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def double(client: Any, value: float, rows: int = 1) -> Any:
    array = np.full((rows, 8), value, np.float32)
    module = httpclient if isinstance(client, httpclient.InferenceServerClient) else grpcclient
    result = client.infer("doubler", [tensor(module, "INPUT0", array, "FP32")])
    assert (result.as_numpy("OUTPUT0") == 2 * array).all()


def run_slow(mesh: Mesh, turns: int) -> None:
    with grpcclient.InferenceServerClient(mesh.grpc) as client:
        turns_tensor = tensor(grpcclient, "TURNS", np.array([turns], np.int64), "INT64")
        assert client.infer("slow", [turns_tensor]).as_numpy("OUTPUT0").tolist() == [turns]


def switches(pid: int) -> dict[int, int]:
    """How often each thread but the first has waited for something."""
    found = {}
    for each in Path(f"/proc/{pid}/task").iterdir():
        if int(each.name) != pid:
            status = (each / "status").read_text()
            (line,) = (one for one in status.splitlines() if one.startswith("voluntary"))
            found[int(each.name)] = int(line.split()[1])
    return found


def test_one_process_serves_everything_but_python_models(mesh: Mesh) -> None:
    (pid,) = mesh.children(JOINED)
    assert mesh.children("nereid_executor") == [pid]
    before = mesh.counts("doubler")
    with httpclient.InferenceServerClient(mesh.http) as client:
        for value in range(20):
            double(client, value, rows=1 + value % 3)
        in_tensor = tensor(httpclient, "IN", np.array([1], np.int64), "INT64")
        (worker,) = client.infer("pid", [in_tensor]).as_numpy("OUT")
    assert worker != pid
    after = mesh.counts("doubler")
    counted = {name: count - before[name] for name, count in after.items()}
    phases = ("success", "queue", "compute_input", "compute_infer", "compute_output")
    assert {name: counted[name] for name in (*phases, "execution_count")} == dict.fromkeys(
        (*phases, "execution_count"), 20
    )
    # Rows, as Triton counts.
    assert counted["inference_count"] == sum(1 + value % 3 for value in range(20))


def test_lone_requests_wake_no_other_thread(mesh: Mesh) -> None:
    (pid,) = mesh.children(JOINED)
    with grpcclient.InferenceServerClient(mesh.grpc) as client:
        for value in range(30):
            double(client, value)
        before = switches(pid)
        for value in range(200):
            double(client, value)
        after = switches(pid)
    # Each of 200 hand-overs would have woken one.
    assert sum(count - before.get(thread, 0) for thread, count in after.items()) < 150


def test_a_slow_model_stalls_neither_health_checks_nor_other_models(mesh: Mesh) -> None:
    done = threading.Event()

    def slow() -> None:
        run_slow(mesh, 2000)
        done.set()

    # The first requests of a model are never the event loop's.
    before = mesh.counts("slow")["success"]
    with ThreadPoolExecutor(1) as pool, httpclient.InferenceServerClient(mesh.http) as client:
        running_slow = pool.submit(slow)
        served = 0
        while not done.is_set() and not running_slow.done():
            assert mesh.get("/v2/health/live")[0] == 200
            double(client, served)
            served += 1
        running_slow.result()
    assert mesh.counts("slow")["success"] == before + 1
    # The loop would have served one before it stalled, and one after.
    assert served > 4
