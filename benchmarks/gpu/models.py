"""Models under test: a perceptron, a convolutional net, and one with large inputs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from google.protobuf import text_format
from onnx import NodeProto, TensorProto, helper, numpy_helper

from benchmarks.models import mlp
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

_CHANNELS = (3, 32, 64, 128, 128)
_IMAGE = (3, 112, 112)
_LARGE = (1 << 20,)


class GpuModel(NamedTuple):
    """Model with one FP32 input and one FP32 output."""

    name: str
    graph: bytes
    input: str
    output: str
    # Dimensions without the batch dimension.
    dims: tuple[int, ...]
    classes: int
    rows: int

    def write(self, directory: Path) -> Path:
        """Make the directory of the model's version, and return it."""
        path = directory / self.name / "1"
        path.mkdir(parents=True)
        (path / "model.onnx").write_bytes(self.graph)
        return path

    def example(self, seed: int) -> Floats:
        """Return one batch."""
        shape = (self.rows, *self.dims)
        return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    def config(self, variant: str) -> model_config_pb2.ModelConfig:
        """Return the configuration as text; `variant` is text to add to it."""
        return text_format.Parse(
            f"""name: "{self.name}" backend: "onnxruntime" max_batch_size: {self.rows}
            input {{ name: "{self.input}" data_type: TYPE_FP32
                     dims: [ {", ".join(map(str, self.dims))} ] }}
            output {{ name: "{self.output}" data_type: TYPE_FP32 dims: {self.classes} }}
            dynamic_batching {{ preferred_batch_size: {self.rows} }} {variant}""",
            model_config_pb2.ModelConfig(),
        )


def models(*, small: bool) -> list[GpuModel]:
    """Return the models; if `small` is true, a CPU runs their batches in almost no time."""
    rows = 2 if small else 32
    return [
        GpuModel("mlp", mlp.graph(), mlp.INPUT, mlp.OUTPUT, (256,), 10, 4 if small else 64),
        GpuModel("conv", _conv(), "x", "y", _IMAGE, _CHANNELS[-1], rows),
        GpuModel("large", _large(), "x", "y", _LARGE, 1, 1 if small else 16),
    ]


def _conv() -> bytes:
    """Return convolutions of stride 2 with relu between, and the mean of each channel."""
    random = np.random.default_rng(3)
    nodes, weights, here = [], [], "x"
    for index, (taken, given) in enumerate(pairwise(_CHANNELS)):
        kernel = random.normal(0, (2 / (9 * taken)) ** 0.5, (given, taken, 3, 3))
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"w{index}"))
        conv = helper.make_node(
            "Conv", [here, f"w{index}"], [f"c{index}"], strides=[2, 2], pads=[1, 1, 1, 1]
        )
        nodes += [conv, helper.make_node("Relu", [f"c{index}"], [f"r{index}"])]
        here = f"r{index}"
    nodes += [
        helper.make_node("GlobalAveragePool", [here], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["y"]),
    ]
    return _model(nodes, _IMAGE, _CHANNELS[-1], weights)


def _large() -> bytes:
    """Return the mean of 4 MiB a row: copying them is all its work."""
    axes = numpy_helper.from_array(np.array([1]), "axes")
    return _model([helper.make_node("ReduceMean", ["x", "axes"], ["y"])], _LARGE, 1, [axes])


def _model(
    nodes: list[NodeProto], dims: tuple[int, ...], classes: int, weights: list[TensorProto]
) -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *dims])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", classes])
    graph = helper.make_graph(nodes, "graph", [x], [y], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return bytes(made.SerializeToString())
