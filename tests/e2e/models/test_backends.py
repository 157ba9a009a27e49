"""Backends that a package, a folder or a model's file brings, through `nereid serve`."""

from __future__ import annotations

import json
import os
import queue
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper

from tests.support.mesh.mesh import Mesh, running
from tests.support.models import onnx_models, openvino_models

pytestmark = pytest.mark.slow

THEIRS = """
from nereid.backends import ModelDescription, TensorDescription

X, Y = TensorDescription("x", "INT32", (-1, 2)), TensorDescription("y", "INT32", (-1,))


class Sum:
    description = ModelDescription((X,), (Y,))

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
        assert json.loads(args["model_config"])["runtime"] == "model.py"
        folder = Path(args["model_repository"]) / args["model_version"]
        self.amount = json.loads((folder / "amount.json").read_text())

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(each, "x").as_numpy() for each in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", added(each, self.amount))])
            for each in arrays
        ]
"""


TOKEN_BACKEND = Path(__file__).parents[3] / "examples" / "token_backend" / "token_backend.py"
SUCCESSORS = {"a": "rolling", "rolling": "stone", "stone": "gathers", "ever": "and", "and": "ever"}
PROVERB = """
backend: "tokens"
input { name: "prompt" data_type: TYPE_STRING dims: 1 }
input { name: "max_tokens" data_type: TYPE_INT32 dims: 1 optional: true }
output { name: "token" data_type: TYPE_STRING dims: 1 }
model_transaction_policy { decoupled: true }
parameters { key: "milliseconds_per_token" value { string_value: "1" } }
"""


class Tokens:
    """A gRPC stream of requests to the example that streams tokens."""

    def __init__(self, mesh: Mesh) -> None:
        self.client = tritonclient.grpc.InferenceServerClient(mesh.grpc)
        self.came: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(lambda result, error: self.came.put((result, error)))

    def ask(self, request_id: str, prompt: str, max_tokens: int | None = None) -> None:
        text = tritonclient.grpc.InferInput("prompt", [1], "BYTES")
        text.set_data_from_numpy(np.array([prompt], np.object_))
        inputs = [text]
        if max_tokens is not None:
            inputs.append(tritonclient.grpc.InferInput("max_tokens", [1], "INT32"))
            inputs[-1].set_data_from_numpy(np.array([max_tokens], np.int32))
        self.client.async_stream_infer(
            "proverb", inputs, request_id=request_id, enable_empty_final_response=True
        )

    def next(self) -> tuple[str, str]:
        """The id of a request, and its next token; empty: its end."""
        result, error = self.came.get(timeout=20)
        assert error is None, error
        response = result.get_response()
        ended = response.parameters["triton_final_response"].bool_param
        assert ended == (not response.outputs)
        return response.id, "" if ended else result.as_numpy("token")[0].decode()

    def rest(self, requests: int = 1) -> dict[str, list[str]]:
        """The tokens by request, once so many requests have ended."""
        tokens: dict[str, list[str]] = defaultdict(list)
        while requests:
            request_id, token = self.next()
            requests -= not token
            if token:
                tokens[request_id].append(token)
        return tokens

    def close(self) -> None:
        self.client.stop_stream(cancel_requests=True)
        self.client.close()


@pytest.fixture
def tokens(mesh: Mesh) -> Iterator[Tokens]:
    tokens = Tokens(mesh)
    yield tokens
    tokens.close()


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("repository")
    (root / "model.theirs" / "1").mkdir(parents=True)
    openvino_models.identity(root / "intel" / "1", "FP32")
    onnx_models.write(
        root / "brain" / "1",
        [
            helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["wide", "wide"], ["doubled"]),
            helper.make_node("Cast", ["doubled"], ["y"], to=TensorProto.BFLOAT16),
        ],
        [onnx_models.value("x", "BF16", ["n", 3])],
        [onnx_models.value("y", "BF16", ["n", 3])],
    )
    for name, amount in (("one_more", "1"), ("ten_more", "10")):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "amount.json").write_text(amount)
        (root / name / "config.pbtxt").write_text('backend: "adder"')
    tensors = "".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_INT32 dims: -1 }}\n'
        for kind, name in (("input", "x"), ("output", "y"))
    )
    for name, written in (("whole", ""), ("named", 'runtime: "model.py"')):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "amount.json").write_text("2")
        (root / name / "config.pbtxt").write_text(f'backend: "adder" {tensors}{written}')
    folders = tmp_path_factory.mktemp("backends")
    (folders / "adder").mkdir()
    (folders / "adder" / "model.py").write_text(PYTHON_BASED)
    (folders / "adder" / "adding.py").write_text("def added(array, amount): return array + amount")
    packages = tmp_path_factory.mktemp("packages")
    (packages / "their_backend.py").write_text(THEIRS)
    info = packages / "their_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-backend\nVersion: 1.0\n")
    points = "theirs = their_backend\ntokens = token_backend"
    (info / "entry_points.txt").write_text(f"[nereid.backends]\n{points}\n")
    shutil.copy(TOKEN_BACKEND, packages)
    (root / "proverb" / "1").mkdir(parents=True)
    (root / "proverb" / "1" / "model.json").write_text(json.dumps(SUCCESSORS))
    (root / "proverb" / "config.pbtxt").write_text(PROVERB)
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


def test_the_example_streams_a_token_for_each_response(tokens: Tokens) -> None:
    tokens.ask("1", "once upon a")
    assert tokens.rest() == {"1": ["rolling", "stone", "gathers"]}
    tokens.ask("2", "for ever", 5)
    assert tokens.rest() == {"2": ["and", "ever", "and", "ever", "and"]}
    tokens.ask("3", "silence")
    assert tokens.rest() == {}


def test_requests_of_the_example_are_generated_side_by_side(tokens: Tokens) -> None:
    tokens.ask("long", "ever", 2_000)
    assert tokens.next() == ("long", "and")
    tokens.ask("short", "rolling")
    while (received := tokens.next())[0] != "short":
        pass
    assert received == ("short", "stone")


@pytest.mark.parametrize(
    ("model", "value"), [("one_more", 6), ("ten_more", 15), ("whole", 7), ("named", 7)]
)
def test_a_python_based_backend_runs_all_its_models(mesh: Mesh, model: str, value: int) -> None:
    config = json.loads(mesh.get(f"/v2/models/{model}/config")[1])
    assert (config["backend"], config["default_model_filename"]) == ("adder", "")
    assert config["runtime"] == "model.py"
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


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_bf16_tensors_of_onnx_models_are_those_of_nvidias_clients(
    mesh: Mesh, protocol: str
) -> None:
    api, address = (
        (tritonclient.http, mesh.http) if protocol == "http" else (tritonclient.grpc, mesh.grpc)
    )
    given = np.array([[1.5, -3.0, 2.0**100], [0.0, -0.0, np.inf]], ml_dtypes.bfloat16)
    with api.InferenceServerClient(address) as client:
        config = json.loads(mesh.get("/v2/models/brain/config")[1])
        assert config["input"][0]["data_type"] == "TYPE_BF16"
        tensor = api.InferInput("x", [2, 3], "BF16")
        tensor.set_data_from_numpy(given)
        reply = client.infer("brain", [tensor], outputs=[api.InferRequestedOutput("y")])
        np.testing.assert_array_equal(reply.as_numpy("y"), given + given)
