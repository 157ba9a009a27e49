"""ONNX graphs that others' exporters make, alone, often, and as steps of an ensemble."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.support.mesh.mesh import Mesh, running
from tests.support.models.onnx_models import value, with_external_weights, write

pytestmark = pytest.mark.slow

ENSEMBLE = """
platform: "ensemble"
input { name: "x" data_type: TYPE_INT64 dims: [1, 1, -1, -1] }
output { name: "pairs" data_type: TYPE_INT64 dims: [8, 2] }
output { name: "same" data_type: TYPE_INT64 dims: [8, 2] }
ensemble_scheduling {
  step { model_name: "boxes" model_version: -1 input_map { key: "x" value: "x" }
    output_map { key: "y" value: "pairs" } }
  step { model_name: "forward" model_version: -1 input_map { key: "x" value: "pairs" }
    output_map { key: "x" value: "same" } }
}
"""
HUB = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 2 }
output { name: "relu" data_type: TYPE_FP32 dims: 2 }
"""


def save_repository(root: Path, hub: Path) -> Path:
    write(
        root / "forward" / "1",
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [value("x", "INT64", ["n", 2])],
        [value(name, "INT64", ["n", 2]) for name in "xy"],
    )
    (root / "forward" / "config.pbtxt").write_text(
        'backend: "onnxruntime" max_batch_size: 0\n'
        + "".join(
            f"{role} {{ name: '{name}' data_type: TYPE_INT64 dims: [-1, 2] }}\n"
            for role, name in (("input", "x"), ("output", "x"), ("output", "y"))
        )
    )
    write(
        root / "boxes" / "1",
        [helper.make_node("Reshape", ["x", "pairs"], ["y"])],
        [value("x", "INT64", [1, 1, "h", "w"])],
        [value("y", "INT64", [8, 2])],
        [numpy_helper.from_array(np.array([-1, 2]), "pairs")],
    )
    (root / "both" / "1").mkdir(parents=True)
    (root / "both" / "config.pbtxt").write_text(ENSEMBLE)
    write(
        hub / "blobs",
        [helper.make_node("Mul", ["x", "w"], ["relu"]), helper.make_node("Neg", ["x"], ["other"])],
        [value("x", "FP32", ["n", 2])],
        [value(name, "FP32", ["n", 2]) for name in ("relu", "other")],
        [numpy_helper.from_array(np.array([3.0, 5.0], np.float32), "w")],
    )
    with_external_weights(hub / "blobs")
    (hub / "snapshots" / "1").mkdir(parents=True)
    for name in ("model.onnx", "weights"):
        (hub / "snapshots" / "1" / name).symlink_to(f"../../blobs/{name}")
    (root / "hub").mkdir()
    (root / "hub" / "1").symlink_to(hub / "snapshots" / "1")
    (root / "hub" / "config.pbtxt").write_text(HUB)
    return root


def infer(mesh: Mesh, model: str, array: np.ndarray[Any, Any], datatype: str) -> dict[str, Any]:
    """Each output's shape and data."""
    tensor = {
        "name": "x",
        "datatype": datatype,
        "shape": list(array.shape),
        "data": array.ravel().tolist(),
    }
    status, body = mesh.get(
        f"/v2/models/{model}/infer", "POST", json.dumps({"inputs": [tensor]}).encode()
    )
    assert status == 200, body
    return {each["name"]: (each["shape"], each["data"]) for each in json.loads(body)["outputs"]}


def test_clients_get_what_the_graph_makes(tmp_path: Path) -> None:
    repository = save_repository(tmp_path / "repository", tmp_path / "hub")
    random = np.random.default_rng(1)
    with running(repository, tmp_path / "log") as mesh:
        # Each of several instances keeps arrays after its first request.
        for _ in range(20):
            x = random.integers(-(1 << 40), 1 << 40, (2, 2))
            found = infer(mesh, "forward", x, "INT64")
            assert found == {
                "x": ([2, 2], x.ravel().tolist()),
                "y": ([2, 2], (2 * x).ravel().tolist()),
            }
        for height in (8, 4) * 10:
            x = random.integers(0, 99, (1, 1, height, 4))
            made = ([2 * height, 2], x.ravel().tolist())
            assert infer(mesh, "boxes", x, "INT64") == {"y": made}
            assert infer(mesh, "both", x, "INT64") == {"pairs": made, "same": made}
        x = np.ones((1, 2), np.float32)
        assert infer(mesh, "hub", x, "FP32") == {"relu": ([1, 2], [3.0, 5.0])}
