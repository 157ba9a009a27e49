"""Makes ResNet-50 as ONNX: the exact architecture, with random weights from a fixed seed.

Convolutions, batch normalisations and the classifier are as in the paper, but with the stride in
the 3x3 convolution, as in the versions of frameworks. The model has 25.6 million parameters and 102
MB, and takes 4.1 GFLOP per image. The weights are scaled so that activations neither vanish nor
overflow. The classes have no meaning. This module must not know how a server is started or loaded.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

NAME = "resnet50"
INPUT = "image"
OUTPUT = "logits"
SHAPE = (3, 224, 224)
CLASSES = 1000
MAX_BATCH_SIZE = 16
PARAMETERS = 25_557_032

Floats = npt.NDArray[np.float32]

# Blocks of each stage, the width of their 3x3 convolution, and the first block's stride.
_STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
_EXPANSION = 4
# Gain of a block, which adds to its input; with it the sum of all sixteen stays of one magnitude.
_RESIDUAL_GAIN = 0.3

_CONFIG = f"""\
name: "{NAME}"
backend: "{{backend}}"
max_batch_size: {MAX_BATCH_SIZE}
input [ {{{{ name: "{INPUT}" data_type: TYPE_FP32 dims: {list(SHAPE)} }}}} ]
output [ {{{{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ {CLASSES} ] }}}} ]
instance_group [ {{{{ kind: KIND_CPU count: 1 }}}} ]
dynamic_batching {{{{ }}}}
"""


@dataclass
class _Graph:
    """Nodes and weights so far; a tensor is known by its name."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    parameters: int = 0
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(50))

    def weight(self, name: str, values: Floats, *, learned: bool = True) -> str:
        """Add a weight, and return its name."""
        self.initializers.append(numpy_helper.from_array(values, name))
        self.parameters += values.size * learned
        return name

    def random_weight(self, name: str, shape: tuple[int, ...], scale: float) -> str:
        """Add a random weight, and return its name."""
        values = self._random.standard_normal(shape, np.float32) * np.float32(scale)
        return self.weight(name, values)

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def convolution(
        self, name: str, source: str, channels: tuple[int, int], size: int, stride: int, gain: float
    ) -> str:
        """Add a convolution and its batch normalisation; channels: input and output channels."""
        inward, outward = channels
        scale = np.sqrt(2 / (inward * size * size))
        weight = self.random_weight(f"{name}.weight", (outward, inward, size, size), scale)
        found = self.node(
            "Conv",
            [source, weight],
            f"{name}.conv",
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[size // 2] * 4,
        )
        ones, zeros = np.ones(outward, np.float32), np.zeros(outward, np.float32)
        statistics = [
            self.weight(f"{name}.gamma", ones * np.float32(gain)),
            self.random_weight(f"{name}.beta", (outward,), 0.05),
            self.weight(f"{name}.mean", zeros, learned=False),
            self.weight(f"{name}.variance", ones, learned=False),
        ]
        return self.node("BatchNormalization", [found, *statistics], f"{name}.norm")

    def relu(self, source: str, name: str) -> str:
        """Add a relu, and return its name."""
        return self.node("Relu", [source], f"{name}.relu")

    def block(self, name: str, source: str, inward: int, width: int, stride: int) -> str:
        """Add a bottleneck: 1x1, 3x3 and 1x1 convolutions, added to the block's input."""
        outward = width * _EXPANSION
        here = self.convolution(f"{name}.a", source, (inward, width), 1, 1, 1)
        here = self.relu(here, f"{name}.a")
        here = self.convolution(f"{name}.b", here, (width, width), 3, stride, 1)
        here = self.relu(here, f"{name}.b")
        here = self.convolution(f"{name}.c", here, (width, outward), 1, 1, _RESIDUAL_GAIN)
        if stride != 1 or inward != outward:
            gain = np.sqrt(
                0.5
            )  # The gain of a relu is left out: no relu follows that would take half of it.
            source = self.convolution(f"{name}.skip", source, (inward, outward), 1, stride, gain)
        return self.relu(self.node("Add", [here, source], f"{name}.sum"), name)


def graph() -> bytes:
    """Return the serialised model, which has a variable batch dimension."""
    made = _Graph()
    here = made.convolution("stem", INPUT, (SHAPE[0], 64), 7, 2, 1)
    here = made.relu(here, "stem")
    here = made.node(
        "MaxPool", [here], "stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
    )
    channels = 64
    for stage, (blocks, width, first_stride) in enumerate(_STAGES):
        for index in range(blocks):
            stride = first_stride if index == 0 else 1
            here = made.block(f"stage{stage}.{index}", here, channels, width, stride)
            channels = width * _EXPANSION
    here = made.node("GlobalAveragePool", [here], "pool")
    here = made.node("Flatten", [here], "features")
    weight = made.random_weight("classes.weight", (channels, CLASSES), np.sqrt(1 / channels))
    bias = made.random_weight("classes.bias", (CLASSES,), 0.01)
    made.node("Gemm", [here, weight, bias], OUTPUT)
    if made.parameters != PARAMETERS:
        raise ValueError(f"{made.parameters} parameters, not {PARAMETERS}")
    body = helper.make_graph(
        made.nodes,
        NAME,
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", *SHAPE])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", CLASSES])],
        made.initializers,
    )
    # Opset 17 and IR 8 are old enough for every onnxruntime that a peer's environment may hold.
    proto = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def example(batch_size: int = 1) -> Floats:
    """Return a batch of random images."""
    random = np.random.default_rng(7)
    return random.standard_normal((batch_size, *SHAPE), np.float32)


def write_file(path: Path) -> Path:
    """Write the model's file if it is missing, and return its path."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # The file is renamed when whole: 102 MB take a moment, and an interrupted run must not
        # leave half.
        partial = path.with_suffix(".partial")
        partial.write_bytes(graph())
        partial.rename(path)
    return path


def write_repository(
    repository: Path, backend: str, python_model: Path | None = None, *, made: Path | None = None
) -> Path:
    """Write a repository with this model.

    python_model: file that becomes the model.py; `None` means no model.py. made: a file that
    write_file() has written earlier.
    """
    file = repository / NAME / "1" / "model.onnx"
    if made is None:
        write_file(file)
    else:
        file.parent.mkdir(parents=True)
        shutil.copyfile(made, file)
    if python_model is not None:
        shutil.copy(python_model, repository / NAME / "1" / "model.py")
    (repository / NAME / "config.pbtxt").write_text(_CONFIG.format(backend=backend))
    return repository
