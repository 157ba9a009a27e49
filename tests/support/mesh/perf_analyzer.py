"""NVIDIA's perf_analyzer against a mesh; NEREID_PERF_ANALYZER names the binary."""

from __future__ import annotations

import csv
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.mesh.mesh import Mesh

_ANALYZER = os.environ.get("NEREID_PERF_ANALYZER", "")
needs_analyzer = pytest.mark.skipif(
    not _ANALYZER, reason="NEREID_PERF_ANALYZER names no perf_analyzer"
)
# How steady a machine is says nothing of the mesh: any windows will do.
WINDOWS = ("--measurement-interval=500", "--stability-percentage=10000", "--max-trials=20")
# As long as it takes: a machine that is busy elsewhere may do nothing in a window by the clock.
COUNTED = (
    "--measurement-mode=count_windows",
    "--measurement-request-count=50",
    "--measurement-interval=200",
    *WINDOWS[1:],
)


def analyze(mesh: Mesh, protocol: str, model: str, *flags: str) -> str:
    """Return its output, after it has ended with 0 and without a failed request."""
    url = mesh.http if protocol == "http" else mesh.grpc
    command = [_ANALYZER, "-m", model, "-u", url, "-i", protocol, *flags]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired as deferred:
        # The side that hangs shows in whether a request is still in flight here.
        ours = [each for each in mesh.metrics().splitlines() if "pending" in each]
        raise AssertionError(
            f"it does not end: {deferred.stdout!r}, {deferred.stderr!r}, {ours}"
        ) from None
    reported = result.stdout + result.stderr
    assert result.returncode == 0, reported
    assert "Failed to obtain stable measurement" not in result.stdout, reported
    assert "metrics endpoint" not in reported.lower(), reported
    return result.stdout


def measured(mesh: Mesh, protocol: str, model: str, report: Path, *flags: str) -> dict[str, str]:
    """The one row of its report: inferences and the server's part in them."""
    analyze(mesh, protocol, model, *flags, "-f", str(report))
    row = next(csv.DictReader(report.read_text().splitlines()))
    assert float(row["Inferences/Second"]) > 0
    assert float(row["Server Compute Infer"]) > 0
    return row
