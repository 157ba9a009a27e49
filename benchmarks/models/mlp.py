"""Model under test: a 256-512-512-10 FP32 perceptron with relu and fixed weights.

This module writes the same graph and the same configuration into the repository of each server, and
computes the expected response. This module must not know how a server is started or loaded.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.models.workload import ONNX_SCRIPT, Workload

NAME = "mlp"
INPUT = "INPUT"
OUTPUT = "OUTPUT"
WIDTHS = (256, 512, 512, 10)
MAX_BATCH_SIZE = 64

Floats = npt.NDArray[np.float32]

_CONFIG = f"""\
name: "{NAME}"
backend: "{{backend}}"
max_batch_size: {MAX_BATCH_SIZE}
input [ {{{{ name: "{INPUT}" data_type: TYPE_FP32 dims: [ {WIDTHS[0]} ] }}}} ]
output [ {{{{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ {WIDTHS[-1]} ] }}}} ]
instance_group [ {{{{ kind: KIND_CPU count: 1 }}}} ]
dynamic_batching {{{{ }}}}
parameters {{{{ key: "intra_op_thread_count" value {{{{ string_value: "1" }}}} }}}}
parameters {{{{ key: "inter_op_thread_count" value {{{{ string_value: "1" }}}} }}}}
"""


def weights() -> list[tuple[Floats, Floats]]:
    """Return each layer's matrix and bias, the same in every run."""
    random = np.random.default_rng(20)
    layers = []
    for rows, columns in pairwise(WIDTHS):
        matrix = random.normal(0, np.sqrt(2 / rows), (rows, columns)).astype(np.float32)
        layers.append((matrix, random.normal(0, 0.1, columns).astype(np.float32)))
    return layers


def example(batch_size: int = 1) -> Floats:
    """Return a batch of inputs, the same in every run."""
    return np.random.default_rng(7).normal(size=(batch_size, WIDTHS[0])).astype(np.float32)


def expected_response(batch: Floats) -> Floats:
    """Return the result of numpy, which the responses of all servers are compared with."""
    *hidden, (last, bias) = weights()
    for matrix, shift in hidden:
        batch = np.maximum(batch @ matrix + shift, np.float32(0))
    return batch @ last + bias


def graph() -> bytes:
    """Return the serialised model."""
    nodes, initializers, here = [], [], INPUT
    layers = weights()
    for index, (matrix, bias) in enumerate(layers):
        initializers += [
            numpy_helper.from_array(matrix, f"w{index}"),
            numpy_helper.from_array(bias, f"b{index}"),
        ]
        last = index == len(layers) - 1
        gemm = OUTPUT if last else f"gemm{index}"
        nodes.append(helper.make_node("Gemm", [here, f"w{index}", f"b{index}"], [gemm]))
        if not last:
            nodes.append(helper.make_node("Relu", [gemm], [f"relu{index}"]))
        here = f"relu{index}"
    body = helper.make_graph(
        nodes,
        NAME,
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", WIDTHS[0]])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", WIDTHS[-1]])],
        initializers,
    )
    # Opset 17 and IR 8 are old enough for every onnxruntime that a peer's environment may hold.
    proto = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def write_file(path: Path) -> Path:
    """Write the model's file, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(graph())
    return path


def config(backend: str) -> str:
    """Return the text of the model's config.pbtxt."""
    return _CONFIG.format(backend=backend)


def write_repository(repository: Path, backend: str, python_model: Path | None = None) -> Path:
    """Write a repository with this model.

    python_model: file that becomes the model.py; `None` means no model.py.
    """
    write_file(repository / NAME / "1" / "model.onnx")
    if python_model is not None:
        shutil.copy(python_model, repository / NAME / "1" / "model.py")
    (repository / NAME / "config.pbtxt").write_text(config(backend))
    return repository


def workload(cache: Path) -> Workload:
    """Return the workload of the perceptron, which each peer runs as it runs any ONNX model."""

    def write(repository: Path, backend: str) -> None:
        write_repository(repository, backend, ONNX_SCRIPT if backend == "python" else None)

    return replace(_workload(NAME, cache, write), protocols=("grpc", "http", "json"))


def python_workload(cache: Path) -> Workload:
    """Return the workload as a Python model on every peer. Nereid and Triton run one model.py."""

    def write(repository: Path, _backend: str) -> None:
        write_repository(repository, "python", ONNX_SCRIPT)

    return replace(_workload("python", cache, write), graph=None)


def _workload(name: str, cache: Path, write: Callable[[Path, str], None]) -> Workload:
    return Workload(
        name=name,
        served=NAME,
        inputs={INPUT: example(3)},
        expected={OUTPUT: expected_response(example(3))},
        write=write,
        graph=write_file(cache / NAME / "model.onnx"),
        batched=NAME,
        max_batch_size=MAX_BATCH_SIZE,
    )
