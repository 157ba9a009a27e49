"""A client that asks for one model after another does not have others' models unloaded."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.mesh.mesh import Mesh, ask, running

pytestmark = pytest.mark.slow

# Three models of 37 MiB fit into it.
_BUDGET = "150MiB"
_WIDTH = 600_000
_COLD = 6
_CLIENTS = 6
_TURNS = 2
_CONFIG = """
backend: "onnxruntime" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [8] }
output { name: "y" data_type: TYPE_FP32 dims: [8] }
instance_group [{ count: 1 kind: KIND_CPU }]
"""
_BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [1.0] * 8}]}
).encode()


def _save(root: Path, name: str) -> None:
    """y = x, by weights that take memory."""
    weights = [
        numpy_helper.from_array(np.zeros(shape, np.float32), weight)
        for weight, shape in (("v", (8, _WIDTH)), ("w", (_WIDTH, 8)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["wide"]),
        helper.make_node("MatMul", ["wide", "w"], ["none"]),
        helper.make_node("Add", ["none", "x"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(each, TensorProto.FLOAT, ["batch", 8]) for each in "xy")
    graph = helper.make_graph(nodes, name, [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (root / name / "1").mkdir(parents=True)
    onnx.save(model, root / name / "1" / "model.onnx")
    (root / name / "config.pbtxt").write_text(_CONFIG)


def _infer(mesh: Mesh, model: str) -> int:
    status, _ = ask(mesh.http, f"/v2/models/{model}/infer", "POST", _BODY)
    return status


def _loads(mesh: Mesh, model: str) -> int:
    return mesh.log.read_text().count(f"model '{model}' version 1 is LOADING")


@pytest.mark.nightly
def test_a_warm_model_remains_warm(tmp_path: Path) -> None:
    """Each cold model gets its turn, in the memory that the popular one leaves."""
    cold = [f"cold_{number}" for number in range(_COLD)]
    for name in ("warm", *cold):
        _save(tmp_path / "models", name)
    flags = ("--lazy-loading", f"--model-memory-budget=cpu={_BUDGET}")
    with running(tmp_path / "models", tmp_path / "log", *flags) as mesh:
        warm: list[int] = [_infer(mesh, "warm") for _ in range(50)]
        ended = threading.Event()

        def go_on() -> None:
            while not ended.wait(0.03):
                warm.append(_infer(mesh, "warm"))

        def thrash(first: int) -> list[int]:
            return [_infer(mesh, cold[(first + turn) % _COLD]) for turn in range(_TURNS * _COLD)]

        with ThreadPoolExecutor(_CLIENTS + 1) as pool:
            honest = pool.submit(go_on)
            hostile = [status for each in pool.map(thrash, range(_CLIENTS)) for status in each]
            ended.set()
            honest.result()
        assert set(warm) == set(hostile) == {HTTPStatus.OK}
        assert _loads(mesh, "warm") == 1
        assert sum(_loads(mesh, each) for each in cold) > _COLD
