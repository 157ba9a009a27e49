"""Models that are loaded by their first requests, and unloaded for others."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
import tritonclient.http as client

from nereid.cli.explain import command as explain
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
# A worker takes some tens of MiB of its own; two of these fit into the budget, three do not.
_MEBIBYTES, _BUDGET = 200, "600MiB"


def add_model(root: Path, name: str, config: str = _CONFIG, initialize: str = "pass") -> None:
    version = root / name / "1"
    version.mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    if "ensemble" not in config:
        source = _MODEL.format(mebibytes=_MEBIBYTES, initialize=initialize)
        (version / "model.py").write_text(source)


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


def test_models_make_way_for_others(tmp_path: Path) -> None:
    root = tmp_path / "models"
    for name in ("m0", "m1"):
        add_model(root, name)
    add_model(root, "broken", initialize="raise RuntimeError('no such weights')")
    eager = 'parameters { key: "lazy_loading" value { string_value: "false" } }'
    add_model(root, "eager", _CONFIG + eager)
    flags = ("--lazy-loading=true", f"--model-memory-budget=cpu={_BUDGET}")
    with running(root, tmp_path / "log", *flags) as mesh:
        # Servers and models are ready, as requests succeed.
        until(lambda: loaded(mesh) == {"eager"}, "the first load")
        assert mesh.get("/v2/health/ready")[0] == 200
        assert mesh.get("/v2/models/m0/ready")[0] == 200
        assert mesh.get("/v2/models/m0/versions/2/ready")[0] == 400
        assert index(mesh)["m0"] == ("READY", "not in memory; the next request loads it")
        # The first request loads, and others wait with it.
        replies: list[float] = []
        threads = [
            threading.Thread(target=lambda: replies.append(infer(mesh, "m0"))) for _ in range(4)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert replies == [6.0] * 4
        assert loaded(mesh) == {"eager", "m0"}
        # Clients look at a model before they use it.
        assert mesh.get("/v2/models/m1/config")[0] == 200
        until(lambda: loaded(mesh) == {"eager", "m1"}, "m0 to make way")
        # One that is loaded for good never makes way.
        assert infer(mesh, "m0") == 6.0
        assert infer(mesh, "eager") == 6.0
        assert "eager" in loaded(mesh)
        page = mesh.metrics()
        assert 'nereid_model_memory_bytes{model="eager",version="1",device="cpu"}' in page
        _, reply = mesh.get("/v2/models/eager/stats")
        (usage,) = json.loads(reply)["model_stats"][0]["memory_usage"]
        assert (usage["type"], usage["id"]) == ("CPU", 0)
        assert _MEBIBYTES < usage["byte_size"] >> 20 < 2 * _MEBIBYTES
        # A model that is in no repository is unknown, as ever.
        status, reply = mesh.get(
            "/v2/models/unknown/infer", "POST", json.dumps({"inputs": []}).encode()
        )
        assert status == 404
        # A load that fails: its requests get the load's error, and the next ones at once.
        for _ in range(2):
            status, reply = mesh.get("/v2/models/broken/infer", "POST", _body())
            assert status == 503
            assert b"no such weights" in reply
        assert index(mesh)["broken"][0] == "UNAVAILABLE"
        assert mesh.get("/v2/models/broken/ready")[0] == 400
        assert mesh.get("/v2/health/ready")[0] == 200


def _body() -> bytes:
    inputs = [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]
    return json.dumps({"inputs": inputs}).encode()


def explained(mesh: Mesh, name: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The exit code of `nereid explain`, and its statements' codes."""
    metrics = f"--metrics-url=127.0.0.1:{mesh.metrics_port}"
    code = explain.main([name, f"--url={mesh.http}", metrics, "--json"])
    document = json.loads(capsys.readouterr().out)
    return code, [each["code"] for each in document["statements"]]


def test_explicit_control_decides_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "models"
    for name in ("m0", "m1", "pinned"):
        add_model(root, name)
    add_model(root, "both", _ENSEMBLE)
    gate = tmp_path / "gate"
    add_model(root, "slow", initialize=f"open({str(gate)!r}).close()")
    os.mkfifo(gate)
    flags = ("--lazy-loading", "--model-control-mode=explicit", "--load-model=pinned")
    with running(root, tmp_path / "log", *flags) as mesh:
        assert infer(mesh, "pinned") == 6.0
        code, codes = explained(mesh, "pinned", capsys)
        assert (code, codes[:4]) == (0, ["ready", "instances", "no-dynamic-batching", "batch-size"])
        # Asking does not load.
        assert explained(mesh, "m1", capsys) == (0, ["not-in-memory"])
        assert loaded(mesh) == {"pinned"}
        # Others are served while a model loads.
        replies: list[float] = []
        waiting = threading.Thread(target=lambda: replies.append(infer(mesh, "slow")))
        waiting.start()
        with gate.open("w"):
            # Its worker has come to initialize().
            assert infer(mesh, "pinned") == 6.0
            assert index(mesh)["slow"][0] == "LOADING"
        waiting.join()
        assert replies == [6.0]
        # An ensemble loads what it composes.
        assert infer(mesh, "both") == 12.0
        assert loaded(mesh) == {"pinned", "slow", "both", "m0", "m1"}
        # What a client unloads stays so.
        http = client.InferenceServerClient(mesh.http)
        http.unload_model("m1")
        until(lambda: index(mesh)["m1"] == ("UNAVAILABLE", "unloaded"), "the unload")
        assert mesh.get("/v2/models/m1/infer", "POST", _body())[0] == 404
        http.load_model("m1")
        assert infer(mesh, "m1") == 6.0
        assert infer(mesh, "both") == 12.0
