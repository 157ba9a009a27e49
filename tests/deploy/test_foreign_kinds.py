"""Objects of other projects' kinds (cert-manager, the Prometheus operator, the Gateway API, KEDA)
against those projects' schemas, which npm's kubernetes-models carry.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.chart.rendering import ROOT, Object, render
from tests.support.chart.value_sets import VALUE_SETS

PACKAGES: Final = (
    "@kubernetes-models/cert-manager@6.0.0",
    "@kubernetes-models/gateway-api@2.0.0",
    "@kubernetes-models/keda@2.0.0",
    "@kubernetes-models/prometheus-operator@6.0.0",
)
_KINDS: Final = {
    "BackendTLSPolicy",
    "Certificate",
    "GRPCRoute",
    "HTTPRoute",
    "Issuer",
    "PodMonitor",
    "PrometheusRule",
    "ScaledObject",
}


@pytest.fixture(scope="session")
def node_modules() -> Path:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("needs node and npm")
    folder = ROOT / "build/npm-kubernetes-models"
    if not (folder / "node_modules/@kubernetes-models/keda").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        command += ["--prefix", str(folder), *PACKAGES]
        installed = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False
        )
        if installed.returncode != 0:
            pytest.skip(f"npm cannot install kubernetes-models: {installed.stderr[-300:]}")
    return folder / "node_modules"


def check(objects: list[Object], modules: Path) -> dict[str, Any]:
    script = Path(__file__).with_name("foreign_kinds.mjs")
    done = subprocess.run(
        ["node", str(script), str(modules)],
        input=json.dumps(objects),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.nightly
def test_objects_are_valid(node_modules: Path) -> None:
    objects = [
        each for values in VALUE_SETS.values() for each in render(values) if each["kind"] in _KINDS
    ]
    assert len(objects) >= 15
    assert check(objects, node_modules) == {"checked": len(objects), "errors": []}
    (monitor,) = (each for each in objects if each["kind"] == "PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0]["path"] = 8002
    assert check([monitor], node_modules)["errors"] != []
