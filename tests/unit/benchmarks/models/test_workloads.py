"""Requests of the models in each protocol, and what passes for the right response."""

import json
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2

from benchmarks import wire
from benchmarks.failure import BenchError
from benchmarks.models import decoupled, ensemble, mlp, registry
from benchmarks.models.workload import Workload

MAKERS = {
    "mlp": mlp.workload,
    "python": mlp.python_workload,
    "ensemble": ensemble.workload,
    "decoupled": decoupled.workload,
}


@pytest.fixture(params=MAKERS)
def workload(request: pytest.FixtureRequest, tmp_path: Path) -> Workload:
    return MAKERS[request.param](tmp_path / "cache")


def test_the_command_line_knows_every_model() -> None:
    assert set(MAKERS) | {"minilm", "resnet50"} == set(registry.NAMES)


@pytest.mark.parametrize("backend", ["onnxruntime", "python"])
def test_repositories(workload: Workload, backend: str, tmp_path: Path) -> None:
    workload.write(tmp_path, backend)
    models = {path.name for path in tmp_path.iterdir() if (path / "config.pbtxt").exists()}
    assert {workload.served, workload.batched} <= models
    for name in models:
        config = text_format.Parse(
            (tmp_path / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
        )
        assert config.name == name
        assert (tmp_path / name / "1").is_dir()
        if backend == "python":
            assert config.backend == "python" or config.platform == "ensemble"
        assert (tmp_path / name / "1" / "model.py").exists() == (config.backend == "python")


def test_every_protocol_sends_the_same_tensors(workload: Workload) -> None:
    message = service_pb2.ModelInferRequest.FromString(wire.grpc_message(workload))
    (name, array), *_ = workload.request().items()
    assert message.raw_input_contents[0] == array.tobytes()
    body = wire.http_body(workload)
    assert body.data[body.header_length :] == array.tobytes()
    document = json.loads(wire.json_body(workload).data)
    assert document["inputs"][0]["shape"] == list(message.inputs[0].shape) == list(array.shape)
    lists = json.loads(wire.json_body(workload, wire.Dialect.LISTS).data)
    for data in (document["inputs"][0]["data"], lists[name]):
        assert np.array_equal(np.asarray(data, np.float32).ravel(), array.ravel())
    assert "Inference-Header-Content-Length" in body.headers()
    assert "Inference-Header-Content-Length" not in wire.json_body(workload).headers()


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "contents"])
def test_responses_are_checked(workload: Workload, raw: bool) -> None:
    ((name, array),) = workload.response().items()

    def response(values: np.ndarray) -> bytes:
        made = service_pb2.ModelInferResponse()
        output = made.outputs.add(name=name, datatype="FP32", shape=values.shape)
        if raw:
            made.raw_output_contents.append(values.tobytes())
        else:
            output.contents.fp32_contents.extend(values.ravel())
        return bytes(made.SerializeToString())

    wire.require_grpc_response(workload, response(array))
    for wrong in (array + np.float32(0.01), array[..., :-1]):
        with pytest.raises(BenchError, match=f"a wrong response: {name}"):
            wire.require_grpc_response(workload, response(wrong))
    with pytest.raises(BenchError, match="None"):
        wire.require_grpc_response(workload, b"")
