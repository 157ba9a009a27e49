"""NVIDIA's perf_analyzer drives the mesh; NEREID_PERF_ANALYZER names the binary."""

import csv
import os
import subprocess
from itertools import product
from pathlib import Path

import pytest

from tests.e2e.mesh import Mesh

ANALYZER = os.environ.get("NEREID_PERF_ANALYZER", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ANALYZER, reason="NEREID_PERF_ANALYZER names no perf_analyzer"),
]

GRPC_MODES = ["--sync", "--async", "--async --streaming"]
# Shared machines are restless: what counts is that windows agree within reason and none fails.
WINDOWS = ["--measurement-interval=250", "--stability-percentage=60", "--max-trials=40"]


@pytest.mark.parametrize(
    ("mesh", "protocol", "mode", "concurrency"),
    [
        *product(["nereid"], ["http"], ["--sync", "--async"], [1, 16, 64]),
        *product(["nereid"], ["grpc"], GRPC_MODES, [1, 16, 64]),
        # The engine shows in how it is spoken to; HTTP has nothing to do with it.
        *product(["grpcio"], ["grpc"], GRPC_MODES, [16]),
    ],
    indirect=["mesh"],
)
def test_it_measures(
    mesh: Mesh, tmp_path: Path, protocol: str, mode: str, concurrency: int
) -> None:
    url = mesh.http if protocol == "http" else mesh.grpc
    report = tmp_path / "report.csv"
    command = [
        ANALYZER,
        "-m",
        "doubler",
        "-u",
        url,
        "-i",
        protocol,
        *mode.split(),
        "-f",
        str(report),
    ]
    command += [f"--concurrency-range={concurrency}", *WINDOWS]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Failed to obtain stable measurement" not in result.stdout
    (row,) = csv.DictReader(report.read_text().splitlines())
    assert float(row["Inferences/Second"]) > 0
    assert float(row["Server Compute Infer"]) > 0
