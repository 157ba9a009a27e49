"""The identity backend, and a backend that an installed package brings, through `nereid serve`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from nereid.core.datatypes import NAMES
from nereid.core.tensors import NUMPY_TYPE
from tests.support.mesh.mesh import Mesh, running
from tests.support.models import openvino_models

pytestmark = pytest.mark.slow

# NVIDIA's clients differ by release in what they take for BF16.
DATATYPES = sorted(NAMES - {"BF16"})

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


def pair(datatype: str, index: int, dims: str = "-1") -> str:
    kind = f"data_type: TYPE_{'STRING' if datatype == 'BYTES' else datatype} dims: [ {dims} ]"
    return f'input {{ name: "INPUT{index}" {kind} }} output {{ name: "OUTPUT{index}" {kind} }}\n'


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("repository")
    configs = {
        "every": "".join(pair(each, index) for index, each in enumerate(DATATYPES)),
        "batched": "max_batch_size: 8\n" + pair("BYTES", 0) + pair("FP16", 1, "2"),
        "bf16": pair("BF16", 0),
        "slow": "max_batch_size: 8 dynamic_batching { }\n"
        + pair("INT32", 0, "1")
        + "instance_group { count: 1 kind: KIND_CPU }\n"
        + 'parameters { key: "execute_delay_ms" value { string_value: "300" } }\n',
        "unpaired": 'input { name: "x" data_type: TYPE_BOOL dims: 1 }'
        ' output { name: "y" data_type: TYPE_BOOL dims: 1 }',
    }
    for name, text in configs.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(f'backend: "identity"\n{text}')
    for name in ("model.theirs", "nobody"):
        (root / name / "1").mkdir(parents=True)
    (root / "nobody" / "config.pbtxt").write_text('backend: "nobodys"\n')
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


def sample(datatype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if datatype == "BYTES":
        return np.array([b"", b"\xff\0", "é".encode() * 300], np.object_).reshape(shape)
    return np.array([0, 1, 2]).astype(NUMPY_TYPE[datatype]).reshape(shape)


@pytest.mark.parametrize("client", [tritonclient.http, tritonclient.grpc])
def test_every_datatype_comes_back_as_it_went(mesh: Mesh, client: Any) -> None:
    inputs = []
    for index, datatype in enumerate(DATATYPES):
        each = client.InferInput(f"INPUT{index}", [3], datatype)
        each.set_data_from_numpy(sample(datatype, (3,)))
        inputs.append(each)
    url = mesh.http if client is tritonclient.http else mesh.grpc
    with client.InferenceServerClient(url) as connection:
        result = connection.infer("every", inputs)
    for index, datatype in enumerate(DATATYPES):
        got, sent = result.as_numpy(f"OUTPUT{index}"), sample(datatype, (3,))
        assert got.dtype == sent.dtype
        assert got.tolist() == sent.tolist()


def test_bfloat16_comes_back_as_it_went(mesh: Mesh) -> None:
    messages = tritonclient.grpc.service_pb2
    request = messages.ModelInferRequest(
        model_name="bf16", raw_input_contents=[b"\x80\x3f\xc0\x7f"]
    )
    request.inputs.add(name="INPUT0", datatype="BF16", shape=[2])
    with grpc.insecure_channel(mesh.grpc) as channel:
        stub = tritonclient.grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        reply = stub.ModelInfer(request, timeout=20)
    assert (reply.outputs[0].datatype, reply.outputs[0].shape) == ("BF16", [2])
    assert list(reply.raw_output_contents) == list(request.raw_input_contents)


def test_several_inputs_in_one_batch(mesh: Mesh) -> None:
    client = tritonclient.http
    texts, halves = sample("BYTES", (3, 1)), np.arange(6, dtype=np.float16).reshape(3, 2)
    inputs = [
        client.InferInput("INPUT0", [3, 1], "BYTES"),
        client.InferInput("INPUT1", [3, 2], "FP16"),
    ]
    inputs[0].set_data_from_numpy(texts)
    inputs[1].set_data_from_numpy(halves)
    with client.InferenceServerClient(mesh.http) as connection:
        result = connection.infer("batched", inputs)
    assert result.as_numpy("OUTPUT0").tolist() == texts.tolist()
    assert result.as_numpy("OUTPUT1").tolist() == halves.tolist()


def test_requests_that_wait_for_a_slow_model_share_a_batch(mesh: Mesh) -> None:
    def infer(value: int) -> int:
        body = {
            "inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [value]}]
        }
        _, reply = mesh.get("/v2/models/slow/infer", "POST", json.dumps(body).encode())
        return int(json.loads(reply)["outputs"][0]["data"][0])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(infer, range(8))) == list(range(8))
    (stats,) = json.loads(mesh.get("/v2/models/slow/stats")[1])["model_stats"]
    assert stats["inference_count"] == 8
    assert stats["execution_count"] < 8
    executions = stats["execution_count"]
    assert stats["inference_stats"]["compute_infer"]["ns"] >= executions * 300_000_000


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


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("unpaired", "expected input name to follow INPUT<index> pattern, got 'x'"),
        (
            "nobody",
            "unable to find backend library for backend 'nobodys', try specifying runtime on",
        ),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why(mesh: Mesh, model: str, reason: str) -> None:
    entry = mesh.index()[model]
    assert entry["state"] == "UNAVAILABLE"
    assert reason in entry["reason"]
