"""The models of the protocol rows, written for ONNX Runtime and for Triton's Python backend.

Names, configurations and what the models compute are the same, so that responses can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.support.models.onnx_types import ONNX_TYPE

DATATYPES: Final = tuple(ONNX_TYPE)
LABELS: Final = ("cat", "dog", "", "a:b")
BACKENDS: Final = {"onnxruntime": "model.onnx", "python": "model.py"}


@dataclass(frozen=True)
class Tensor:
    """A tensor of a configuration."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    more: str = ""

    def config(self) -> str:
        kind = "STRING" if self.datatype == "BYTES" else self.datatype
        dims = list(self.dims)
        return f'{{ name: "{self.name}" data_type: TYPE_{kind} dims: {dims} {self.more} }}\n'


@dataclass(frozen=True)
class Model:
    """One model; body is Python: from a request's inputs (by name) to its outputs' arrays.

    One without a graph runs in the Python backend on either side.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    graph: onnx.GraphProto | None
    body: str
    max_batch_size: int = 0
    more: str = ""
    versions: tuple[int, ...] = (1,)
    labels: tuple[str, ...] = ()

    def config(self, backend: str) -> str:
        tensors = "".join(f"input {each.config()}" for each in self.inputs)
        tensors += "".join(f"output {each.config()}" for each in self.outputs)
        return (
            f'name: "{self.name}"\nbackend: "{backend}"\nmax_batch_size: {self.max_batch_size}\n'
            f"{tensors}instance_group {{ count: 1 kind: KIND_CPU }}\n{self.more}\n"
        )


def models() -> tuple[Model, ...]:
    """All of them."""
    several = (("A", "INT32", (-1,)), ("B", "BYTES", (-1,)), ("C", "FP64", (2,)))
    prompt = (("text", "BYTES", (1,)), ("count", "INT32", (1,)))
    return (
        *(_same(f"identity_{each.lower()}", each, (-1,), 8) for each in DATATYPES),
        _same("batched", "INT32", (-1,), 8, "dynamic_batching { }"),
        _same("matrix_fp32", "FP32", (-1, -1)),
        _same("matrix_bytes", "BYTES", (-1, -1)),
        _same("fixed", "FP32", (2, 3)),
        _same("scalar", "INT64", (1,)),
        _same("counted_http", "INT32", (2,), 8),
        _same("counted_grpc", "INT32", (2,), 8),
        _same(
            "versions",
            "INT32",
            (-1,),
            more="version_policy { specific { versions: [1, 3] } }",
            versions=(1, 2, 3),
        ),
        _identities("several", several),
        _identities("prompt", prompt),
        _add_sub(),
        _labelled(),
        _fail(),
        _slow(),
    )


def write_repository(root: Path, backend: str) -> Path:
    """All models for one backend ("onnxruntime" or "python"), and one that does not load."""
    write_models(root, models(), backend)
    broken = root / "broken" / "1" / BACKENDS[backend]
    broken.parent.mkdir(parents=True)
    broken.write_text("this is no model")
    (root / "broken" / "config.pbtxt").write_text(
        models()[0].config(backend).replace(models()[0].name, "broken")
    )
    return root


def write_models(root: Path, wanted: Iterable[Model], backend: str) -> None:
    """Write some of the models."""
    for model in wanted:
        for version in model.versions:
            directory = root / model.name / str(version)
            directory.mkdir(parents=True)
            if backend == "python" or model.graph is None:
                (directory / "model.py").write_text(_PYTHON.format(body=model.body))
            else:
                onnx.save(_onnx(model.graph), directory / BACKENDS[backend])
        own = "python" if model.graph is None else backend
        (root / model.name / "config.pbtxt").write_text(model.config(own))
        if model.labels:
            (root / model.name / "labels.txt").write_text("\n".join(model.labels))


_PYTHON: Final = """\
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def again(tensor, name):
    return pb_utils.Tensor(name, tensor.as_numpy())


def again_bf16(tensor, name):
    # numpy has no such type
    return pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack())


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(each) for each in requests]

    def answer(self, request):
        tensors = {{each.name(): each for each in request.inputs()}}
        return pb_utils.InferenceResponse(self.outputs(tensors))

    def outputs(self, tensors):
        {body}
"""


def _onnx(graph: onnx.GraphProto) -> onnx.ModelProto:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _values(tensors: tuple[Tensor, ...], batched: bool) -> list[onnx.ValueInfoProto]:
    found = []
    for tensor in tensors:
        dims: list[str | int] = ["batch"] if batched else []
        dims += [
            f"{tensor.name}_{axis}" if size < 0 else size for axis, size in enumerate(tensor.dims)
        ]
        found.append(helper.make_tensor_value_info(tensor.name, ONNX_TYPE[tensor.datatype], dims))
    return found


def _same(
    name: str,
    datatype: str,
    dims: tuple[int, ...],
    max_batch_size: int = 0,
    more: str = "",
    *,
    versions: tuple[int, ...] = (1,),
) -> Model:
    """OUTPUT0 = INPUT0."""
    inputs = (Tensor("INPUT0", datatype, dims),)
    outputs = (Tensor("OUTPUT0", datatype, dims),)
    batched = max_batch_size > 0
    graph = helper.make_graph(
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        name,
        _values(inputs, batched),
        _values(outputs, batched),
    )
    again = "again_bf16" if datatype == "BF16" else "again"
    body = f'return [{again}(tensors["INPUT0"], "OUTPUT0")]'
    return Model(name, inputs, outputs, graph, body, max_batch_size, more, versions)


def _identities(name: str, tensors: tuple[tuple[str, str, tuple[int, ...]], ...]) -> Model:
    """Each output `<name>_out` is the input `<name>`."""
    inputs = tuple(Tensor(*each) for each in tensors)
    outputs = tuple(Tensor(f"{each}_out", kind, dims) for each, kind, dims in tensors)
    graph = helper.make_graph(
        [helper.make_node("Identity", [each.name], [f"{each.name}_out"]) for each in inputs],
        name,
        _values(inputs, False),
        _values(outputs, False),
    )
    body = 'return [again(value, f"{name}_out") for name, value in sorted(tensors.items())]'
    return Model(name, inputs, outputs, graph, body)


def _add_sub() -> Model:
    inputs = tuple(Tensor(each, "INT32", (4,)) for each in ("INPUT0", "INPUT1"))
    outputs = tuple(Tensor(each, "INT32", (4,)) for each in ("OUTPUT0", "OUTPUT1"))
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        "add_sub",
        _values(inputs, True),
        _values(outputs, True),
    )
    body = (
        'left, right = (tensors[each].as_numpy() for each in ("INPUT0", "INPUT1"))\n'
        '        return [pb_utils.Tensor("OUTPUT0", left + right),'
        ' pb_utils.Tensor("OUTPUT1", left - right)]'
    )
    return Model("add_sub", inputs, outputs, graph, body, max_batch_size=8)


def _labelled() -> Model:
    """OUTPUT0 = 2 * INPUT0, with labels."""
    inputs = (Tensor("INPUT0", "FP32", (4,)),)
    outputs = (Tensor("OUTPUT0", "FP32", (4,), 'label_filename: "labels.txt"'),)
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["INPUT0", "two"], ["OUTPUT0"])],
        "labelled",
        _values(inputs, True),
        _values(outputs, True),
        [two],
    )
    body = 'return [pb_utils.Tensor("OUTPUT0", tensors["INPUT0"].as_numpy() * np.float32(2))]'
    return Model("labelled", inputs, outputs, graph, body, 8, labels=LABELS)


def _fail() -> Model:
    """OUTPUT0 = INPUT0; an error where an element is 1000 or more."""
    inputs, outputs = (Tensor("INPUT0", "INT64", (1,)),), (Tensor("OUTPUT0", "INT64", (1,)),)
    zeros = numpy_helper.from_array(np.zeros(1000, np.int64), "zeros")
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["zeros", "INPUT0"], ["zero"]),
            helper.make_node("Add", ["INPUT0", "zero"], ["OUTPUT0"]),
        ],
        "fail",
        _values(inputs, False),
        _values(outputs, False),
        [zeros],
    )
    body = (
        'assert tensors["INPUT0"].as_numpy()[0] < 1000, "out of range"\n'
        '        return [again(tensors["INPUT0"], "OUTPUT0")]'
    )
    return Model("fail", inputs, outputs, graph, body)


def _slow() -> Model:
    """OUTPUT0 = INPUT0 after as many milliseconds; its queue holds two for half a minute."""
    inputs, outputs = (Tensor("INPUT0", "INT64", (1,)),), (Tensor("OUTPUT0", "INT64", (1,)),)
    body = (
        'time.sleep(tensors["INPUT0"].as_numpy().max() / 1000)\n'
        '        return [again(tensors["INPUT0"], "OUTPUT0")]'
    )
    policy = "max_queue_size: 2 allow_timeout_override: true timeout_action: REJECT"
    policy += " default_timeout_microseconds: 30000000"
    more = f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}"
    return Model("slow", inputs, outputs, None, body, 1, more)
