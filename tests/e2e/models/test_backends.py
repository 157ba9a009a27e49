"""Backends that a package, a folder or a model's file brings, through `nereid serve`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.support.mesh.mesh import Mesh, running
from tests.support.models import openvino_models

pytestmark = pytest.mark.slow

THEIRS = """
from nereid.backends import ModelDescription, TensorDescription

X, Y = TensorDescription("x", "INT32", (-1, 2)), TensorDescription("y", "INT32", (-1,))


class Sum:
    description = ModelDescription((X,), (Y,))
    bytes_as_text = False

    def execute(self, inputs, outputs):
        return [inputs["x"].sum(axis=1, dtype="i4")]

    def close(self):
        pass


def uses_gpus():
    return False


def describe(config, version_path):
    return Sum.description


def load(spec):
    return Sum()
"""

# Its models say only whose they are; what they do is in their directories.
PYTHON_BASED = """
import json
from pathlib import Path

import triton_python_backend_utils as pb_utils
from adding import added


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.add_input({"name": "x", "data_type": "TYPE_INT32", "dims": [-1]})
        config.add_output({"name": "y", "data_type": "TYPE_INT32", "dims": [-1]})
        return config

    def initialize(self, args):
        folder = Path(args["model_repository"]) / args["model_version"]
        self.amount = json.loads((folder / "amount.json").read_text())

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(each, "x").as_numpy() for each in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", added(each, self.amount))])
            for each in arrays
        ]
"""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("repository")
    (root / "model.theirs" / "1").mkdir(parents=True)
    openvino_models.identity(root / "intel" / "1", "FP32")
    for name, amount in (("one_more", "1"), ("ten_more", "10")):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "amount.json").write_text(amount)
        (root / name / "config.pbtxt").write_text('backend: "adder"')
    folders = tmp_path_factory.mktemp("backends")
    (folders / "adder").mkdir()
    (folders / "adder" / "model.py").write_text(PYTHON_BASED)
    (folders / "adder" / "adding.py").write_text("def added(array, amount): return array + amount")
    packages = tmp_path_factory.mktemp("packages")
    (packages / "their_backend.py").write_text(THEIRS)
    info = packages / "their_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nereid.backends]\ntheirs = their_backend\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
        flag = f"--backend-directory={folders}"
        with running(root, tmp_path_factory.mktemp("mesh") / "log", flag) as mesh:
            yield mesh


def test_a_package_brings_a_backend_and_its_models_need_no_configuration(mesh: Mesh) -> None:
    config = json.loads(mesh.get("/v2/models/model.theirs/config")[1])
    assert (config["backend"], config["max_batch_size"]) == ("theirs", 4)
    body = {"inputs": [{"name": "x", "shape": [2, 2], "datatype": "INT32", "data": [1, 2, 3, 4]}]}
    _, reply = mesh.get("/v2/models/model.theirs/infer", "POST", json.dumps(body).encode())
    assert json.loads(reply)["outputs"] == [
        {"name": "y", "datatype": "INT32", "shape": [2, 1], "data": [3, 7]}
    ]


@pytest.mark.parametrize(("model", "value"), [("one_more", 6), ("ten_more", 15)])
def test_a_python_based_backend_runs_all_its_models(mesh: Mesh, model: str, value: int) -> None:
    config = json.loads(mesh.get(f"/v2/models/{model}/config")[1])
    assert (config["backend"], config["default_model_filename"]) == ("adder", "")
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "INT32", "data": [5]}]}
    _, reply = mesh.get(f"/v2/models/{model}/infer", "POST", json.dumps(body).encode())
    assert json.loads(reply)["outputs"][0]["data"] == [value]


def test_a_model_file_determines_backend_and_configuration(mesh: Mesh) -> None:
    config = json.loads(mesh.get("/v2/models/intel/config")[1])
    assert (config["backend"], config["default_model_filename"]) == ("openvino", "model.xml")
    assert config["max_batch_size"] == 4
    tensor = {"name": "INPUT0", "shape": [1, 3], "datatype": "FP32", "data": [1.5, 2.5, 3.5]}
    body = json.dumps({"inputs": [tensor]}).encode()
    _, reply = mesh.get("/v2/models/intel/infer", "POST", body)
    assert json.loads(reply)["outputs"] == [tensor | {"name": "OUTPUT0"}]
