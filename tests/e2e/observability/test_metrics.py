"""The metrics page of a whole mesh: its numbers, its form, and its readers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.mesh.mesh import Mesh, free_port, running, until
from tests.support.models.e2e_models import make_repository

pytestmark = pytest.mark.slow

ROWS = 3
BODY = json.dumps(
    {"inputs": [{"name": "INPUT0", "shape": [ROWS, 8], "datatype": "FP32", "data": [1] * 8 * ROWS}]}
).encode()
M = (("model", "doubler"), ("version", "1"))

Key = tuple[str, tuple[tuple[str, str], ...]]


def series(mesh: Mesh) -> dict[Key, float]:
    """Read by Prometheus' own parser, which gives Triton's counters a _total that they lack."""
    return {
        (_named(sample.name), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(mesh.metrics())
        for sample in family.samples
    }


def _named(name: str) -> str:
    return name.removesuffix("_total") if name.startswith("nv_") else name


@pytest.fixture(
    scope="module", params=["scheduler", pytest.param("none", marks=pytest.mark.nightly)]
)
def own_mesh(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    """A mesh that nobody else asks anything, with everything on."""
    folder = tmp_path_factory.mktemp("metrics")
    flags = (
        f"--join={request.param}",
        "--metrics-config=histogram_latencies=true",
        "--metrics-config=summary_latencies=true",
        "--metrics-interval-ms=50",
    )
    with running(make_repository(folder / "repository"), folder / "log", *flags) as mesh:
        # Until then `nereid serve` itself asks the mesh what it can do.
        mesh.greeting()
        yield mesh


def test_what_requests_move(own_mesh: Mesh) -> None:
    def ready() -> bool:
        return ("nv_inference_count", M) in series(own_mesh)

    until(ready, "the model's series")
    before = series(own_mesh)
    for _ in range(4):
        status, _ = own_mesh.get("/v2/models/doubler/infer", "POST", BODY)
        assert status == 200
    after = series(own_mesh)

    def moved(name: str, *labels: tuple[str, str]) -> float:
        key = (name, tuple(sorted(labels)))
        return after[key] - before.get(key, 0)

    assert moved("nv_inference_request_success", *M) == 4
    assert moved("nv_inference_count", *M) == 4 * ROWS
    assert moved("nv_inference_exec_count", *M) == 4
    assert moved("nereid_batch_size_count", *M) == 4
    assert moved("nereid_batch_size_sum", *M) == 4 * ROWS
    assert moved("nereid_batch_size_bucket", *M, ("le", "2")) == 0
    assert moved("nereid_batch_size_bucket", *M, ("le", "4")) == 4
    assert moved("nereid_gateway_http_responses_total", ("status", "200")) == 4
    assert moved("nv_inference_first_response_histogram_ms_count", *M) == 4
    assert moved("nv_inference_request_summary_us_count", *M) == 4
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    spent = [moved(f"nv_inference_{part}_duration_us", *M) for part in parts]
    assert all(part > 0 for part in spent)
    assert sum(spent) <= moved("nv_inference_request_duration_us", *M)
    closed = [
        after[key] - before[key]
        for key in after
        if key[0] == "nereid_batches_closed_total" and set(M) <= set(key[1])
    ]
    assert sum(closed) == 4
    for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
        assert moved("nv_inference_request_failure", *M, ("reason", reason)) == 0
    for other in ("add_sub", "identity_fp32"):
        assert moved("nv_inference_count", ("model", other), ("version", "1")) == 0


def test_the_machine_and_the_mesh(own_mesh: Mesh) -> None:
    until(lambda: ("nv_cpu_utilization", ()) in series(own_mesh), "the executor's report")
    reported = series(own_mesh)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert abs(reported["nv_cpu_memory_total_bytes", ()] - memory) < memory / 20
    assert 0 < reported["nv_cpu_memory_used_bytes", ()] < memory
    assert 0 <= reported["nv_cpu_utilization", ()] <= 1
    assert reported["nv_pinned_memory_pool_total_bytes", ()] == 0
    assert reported["nv_pinned_memory_pool_used_bytes", ()] == 0
    assert reported["nereid_executors", ()] == 1
    assert reported["nereid_links", (("peer", "gateway"),)] == 1
    assert reported["nereid_gateway_linked", ()] == 1
    assert reported["nv_inference_pending_request_count", M] == 0
    assert reported["nv_model_load_duration_secs", M] > 0
    assert reported["process_resident_memory_bytes", ()] > 1 << 20


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_promtool_accepts_the_page(own_mesh: Mesh) -> None:
    page = own_mesh.metrics()
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
            "nereid.services.scheduler",
            f"--model-repository={repository}",
            f"--metrics-port={ports[0]}",
            "--metrics-config=summary_latencies=true",
            address,
        ],
        [
            "nereid.services.executor",
            "--gpus=none",
            f"--metrics-port={ports[1]}",
            "--metrics-interval-ms=50",
            address,
        ],
        ["nereid.services.cache", *cache, f"--metrics-port={ports[2]}"],
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
