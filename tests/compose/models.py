"""Two models that double what they get and take milliseconds for it, so that a kill hits a run; one
that takes a second, so that requests queue for it; one that brings a package; and one that runs the
code that a request has.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.models import python_models
from tests.support.models.wheels import save_wheel

LENGTH = 1024
PLAIN, CACHED, SLOW, PACKED = "doubler", "cached_doubler", "slow", "packed"
PROBER = "prober"
_TURNS = 8
_SLOW_CONFIG = f"""
backend: "identity"
max_batch_size: 1
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: {LENGTH} }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: {LENGTH} }}
instance_group {{ count: 1 kind: KIND_CPU }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "1000" }} }}
"""
_PACKED_CONFIG = f"""
backend: "python"
max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: {LENGTH} }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: {LENGTH} }}
"""
_PACKED_SOURCE = """
import factor
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [request.inputs()[0].as_numpy() for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", data * factor.FACTOR)])
            for data in inputs
        ]
"""


def make_repository(root: Path) -> Path:
    """Write all models into an empty directory.

    Responses of CACHED may come from the cache; SLOW copies; the factor of PACKED is its package's;
    PROBER runs code.
    """
    python_models.save(root, PROBER, python_models.PROBER)
    _save(root, PLAIN, "")
    _save(root, CACHED, "response_cache { enable: true }\n")
    (root / SLOW / "1").mkdir(parents=True)
    (root / SLOW / "config.pbtxt").write_text(_SLOW_CONFIG)
    packed = root / PACKED
    (packed / "1").mkdir(parents=True)
    (packed / "1" / "model.py").write_text(_PACKED_SOURCE)
    (packed / "config.pbtxt").write_text(_PACKED_CONFIG)
    (packed / "requirements.txt").write_text("factor\n")
    save_wheel(packed / "wheels", "factor", "1.0", "FACTOR = 3\n")
    return root


def _save(root: Path, name: str, more: str) -> None:
    model = helper.make_model(_doubler(), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    directory = root / name / "1"
    directory.mkdir(parents=True)
    onnx.save(model, directory / "model.onnx")
    text = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 500 }\n"
    (root / name / "config.pbtxt").write_text(text + more)


def _doubler() -> onnx.GraphProto:
    """OUTPUT0 = 2 * INPUT0, by way of products with the identity, which are exact."""
    weights = [
        numpy_helper.from_array(np.eye(LENGTH, dtype=np.float32), "one"),
        numpy_helper.from_array(np.array(2, np.float32), "two"),
    ]
    names = ["INPUT0", *(f"product{turn}" for turn in range(_TURNS))]
    nodes = [
        helper.make_node("MatMul", [before, "one"], [after])
        for before, after in itertools.pairwise(names)
    ]
    nodes.append(helper.make_node("Mul", [names[-1], "two"], ["OUTPUT0"]))
    shape: list[str | int | None] = ["batch", LENGTH]
    return helper.make_graph(
        nodes,
        "doubler",
        [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, shape)],
        weights,
    )
