"""The metrics pages of a mesh's processes."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http

from tests.support.mesh.mesh import free_port, running, until
from tests.support.models.e2e_models import make_repository

pytestmark = pytest.mark.slow


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_promtool_accepts_the_page(tmp_path: Path) -> None:
    flags = [f"--metrics-config={each}_latencies=true" for each in ("histogram", "summary")]
    with running(make_repository(tmp_path / "repository"), tmp_path / "log", *flags) as mesh:
        page = mesh.metrics()
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    # 1: it cannot be read. 3: it can, but names could be better; Triton's names are what they are.
    assert checked.returncode in (0, 3), checked.stderr
    complaints = checked.stderr.splitlines()
    assert [line for line in complaints if line and not line.startswith("nv_")] == []


def test_scheduler_executor_and_cache_have_endpoints_of_their_own(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    address = f"--scheduler-address=unix:{tmp_path}/socket"
    ports = free_port(), free_port(), free_port()
    cache = ["--cache-config=local,size=1048576", f"--cache-listen=unix:{tmp_path}/cache"]
    commands = (
        [
            "nereid_scheduler",
            f"--model-repository={repository}",
            f"--metrics-port={ports[0]}",
            "--metrics-config=summary_latencies=true",
            address,
        ],
        [
            "nereid_executor",
            "--gpus=none",
            f"--metrics-port={ports[1]}",
            "--metrics-interval-ms=50",
            address,
        ],
        ["nereid_cache", *cache, f"--metrics-port={ports[2]}"],
    )
    processes = [subprocess.Popen([sys.executable, "-m", *argv]) for argv in commands]
    try:
        for port, line in (
            (ports[0], 'nv_inference_count{model="doubler",version="1"} 0'),
            (ports[0], 'nv_inference_request_summary_us_count{model="doubler",version="1"} 0'),
            (ports[0], "nv_cpu_utilization"),
            (ports[1], 'nereid_executor_instances{model="doubler",version="1"} 1'),
            (ports[2], "nv_cache_num_entries 0"),
        ):
            until(lambda port=port, line=line: line in _page(port), f"{line} on {port}")  # type: ignore[misc]
            assert "\nprocess_start_time_seconds " in _page(port)
        assert "nereid_executor_joined 1" in _page(ports[1])
    finally:
        for process in reversed(processes):
            process.terminate()
        codes = [process.wait(40) for process in processes]
    assert codes == [0, 0, 0]


def _page(port: int) -> str:
    url = f"http://127.0.0.1:{port}/metrics"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())
    return ""


def test_requests_leave_nothing_for_the_garbage_collector(tmp_path: Path) -> None:
    """A compiled closure would: these tests run on the compiled form as well."""
    requests = 2000
    values = np.ones((1, 8), np.float32)

    def collected() -> float:
        lines = mesh.metrics().splitlines()
        found = [line for line in lines if line.startswith("python_gc_objects_collected_total")]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    with running(make_repository(tmp_path / "repository"), tmp_path / "log") as mesh:
        for module, address in ((http, mesh.http), (grpc, mesh.grpc)):
            tensor = module.InferInput("INPUT0", values.shape, "FP32")
            tensor.set_data_from_numpy(values)
            before = collected()
            with module.InferenceServerClient(address) as client:
                for _ in range(requests):
                    client.infer("doubler", [tensor])
            assert collected() - before < requests, module.__name__
