"""Models that are loaded by their first requests, and unloaded for others."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from nereid_explain import command as explain
from tests.support.mesh.mesh import Mesh, running, until

pytestmark = pytest.mark.slow

_CONFIG = """
backend: "python" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
"""
_MODEL = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.weights = bytearray({mebibytes} << 20)
        {initialize}
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy() * 2)])
            for r in requests
        ]
"""
_ENSEMBLE = """
platform: "ensemble" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
ensemble_scheduling {
  step { model_name: "m0" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "t" } }
  step { model_name: "m1" model_version: -1
    input_map { key: "x" value: "t" } output_map { key: "y" value: "y" } }
}
"""
_CALLER = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="m0", requested_output_names=["y"], inputs=request.inputs()
            ).exec()
            if call.has_error():
                raise pb_utils.TritonModelException(call.error().message())
            responses.append(pb_utils.InferenceResponse(call.output_tensors()))
        return responses
"""
# A worker takes some tens of MiB of its own; three of these fit into the budget, and a worker
# without weights beside them, but not four.
_MEBIBYTES, _BUDGET = 200, "900MiB"


def add_model(root: Path, name: str, config: str = _CONFIG, initialize: str = "pass") -> None:
    version = root / name / "1"
    version.mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    if "ensemble" not in config:
        source = _MODEL.format(mebibytes=_MEBIBYTES, initialize=initialize)
        (version / "model.py").write_text(source)


def write_onnx(directory: Path) -> None:
    """The same by ONNX, in model.onnx."""
    directory.mkdir(parents=True)
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 1]) for name in ("x", "y")
    )
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, directory / "model.onnx")


def infer(mesh: Mesh, name: str, value: float = 3.0) -> float:
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [value]}]}
    status, reply = mesh.get(f"/v2/models/{name}/infer", "POST", json.dumps(body).encode())
    assert status == 200, reply
    return float(json.loads(reply)["outputs"][0]["data"][0])


def index(mesh: Mesh) -> dict[str, tuple[str, str]]:
    _, reply = mesh.get("/v2/repository/index", "POST", b"")
    return {each["name"]: (each.get("state"), each.get("reason", "")) for each in json.loads(reply)}


def loaded(mesh: Mesh) -> set[str]:
    return {
        name for name, (state, reason) in index(mesh).items() if state == "READY" and not reason
    }


def explained(mesh: Mesh, name: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The exit code of `nereid explain`, and its statements' codes."""
    metrics = f"--metrics-url=127.0.0.1:{mesh.metrics_port}"
    code = explain.main([name, f"--url={mesh.http}", metrics, "--json"])
    document = json.loads(capsys.readouterr().out)
    return code, [each["code"] for each in document["statements"]]


def test_models_make_way_for_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "models"
    for name in ("m0", "m1", "pinned"):
        add_model(root, name)
    add_model(root, "both", _ENSEMBLE)
    add_model(root, "caller")
    (root / "caller" / "1" / "model.py").write_text(_CALLER)
    # As Optimum exports a model.
    write_onnx(root / "exported" / "onnx")
    (root / "exported" / "config.json").write_text("{}")
    gate = tmp_path / "gate"
    add_model(root, "slow", initialize=f"open({str(gate)!r}).read()")
    os.mkfifo(gate)
    flags = ["--lazy-loading=true", f"--model-memory-budget=cpu={_BUDGET}"]
    flags += ["--model-control-mode=explicit", "--load-model=pinned"]
    # The least recently used one makes way.
    flags.append("--model-popularity-half-life=0")
    with running(root, tmp_path / "log", *flags) as mesh:
        # Servers and models are ready, as requests succeed.
        until(lambda: loaded(mesh) == {"pinned"}, "the first load")
        assert mesh.get("/v2/health/ready")[0] == 200
        assert mesh.get("/v2/models/m0/ready")[0] == 200
        assert mesh.get("/v2/models/m0/versions/2/ready")[0] == 400
        assert index(mesh)["m0"] == ("READY", "not in memory; the next request loads it")
        assert infer(mesh, "pinned") == 6.0
        code, codes = explained(mesh, "pinned", capsys)
        assert (code, codes[:4]) == (0, ["ready", "instances", "no-dynamic-batching", "batch-size"])
        # The first request loads, and others wait with it.
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(partial(infer, mesh), ["m0"] * 4)) == [6.0] * 4
        assert loaded(mesh) == {"pinned", "m0"}
        # Clients look at a model before they use it.
        assert mesh.get("/v2/models/m1/config")[0] == 200
        assert loaded(mesh) == {"pinned", "m0", "m1"}
        # Others are served while a model loads.
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(infer, mesh, "slow")
            with gate.open("w"):
                # Its worker has come to initialize().
                assert infer(mesh, "pinned") == 6.0
                assert index(mesh)["slow"][0] == "LOADING"
            assert waiting.result() == 6.0
        # It turned out to be larger than what was left.
        until(lambda: loaded(mesh) == {"pinned", "m1", "slow"}, "m0 to make way")
        # An ensemble loads what it composes.
        assert infer(mesh, "both") == 12.0
        until(lambda: loaded(mesh) == {"pinned", "both", "m0", "m1"}, "slow to make way")
        # So does a model whose requests need another one.
        assert infer(mesh, "m1") == 6.0
        Path(root / "slow" / "1" / "model.py").write_text(
            (root / "m0" / "1" / "model.py").read_text()
        )
        assert infer(mesh, "slow") == 6.0
        until(lambda: loaded(mesh) == {"pinned", "m1", "slow"}, "m0 to make way")
        assert infer(mesh, "caller") == 6.0
        assert {"caller", "m0"} < loaded(mesh)
        # One that is loaded for good never makes way.
        assert "pinned" in loaded(mesh)
        page = mesh.metrics()
        assert 'nereid_model_memory_bytes{model="pinned",version="1",device="cpu"}' in page
        _, reply = mesh.get("/v2/models/pinned/stats")
        (usage,) = json.loads(reply)["model_stats"][0]["memory_usage"]
        assert (usage["type"], usage["id"]) == ("CPU", 0)
        assert _MEBIBYTES < usage["byte_size"] >> 20 < 2 * _MEBIBYTES
        # An export is served where it is.
        assert infer(mesh, "exported") == 6.0
