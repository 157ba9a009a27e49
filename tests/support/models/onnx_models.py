"""Small ONNX models, their configurations, and requests for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf import text_format
from onnx import helper, numpy_helper

from nereid.core.tensors.classification import Classification, request_classification
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from tests.support.models.onnx_types import ONNX_TYPE

Dims = list[Any] | None

# Batch inputs of ragged().
RAGGED_KINDS = {
    "COUNT": ("BATCH_ELEMENT_COUNT", "INT32"),
    "SUM": ("BATCH_ACCUMULATED_ELEMENT_COUNT", "FP32"),
    "SUM_WITH_ZERO": ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "INT32"),
    "LARGEST": ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", "FP32"),
    "SHAPE": ("BATCH_ITEM_SHAPE", "INT32"),
    "FLAT_SHAPE": ("BATCH_ITEM_SHAPE_FLATTEN", "FP32"),
}
RAGGED_CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1, -1 ] }
batch_output { target_name: "Y" source_input: "X" }
instance_group [{ count: 1 kind: KIND_CPU }]
""" + "".join(
    f'batch_input {{ kind: {kind} target_name: "{name}" source_input: "X" '
    f"data_type: TYPE_{datatype} }}\n"
    f'output {{ name: "OUT_{name}" data_type: TYPE_{datatype} '
    f"dims: {2 if name.endswith('SHAPE') else 1} }}\n"
    for name, (kind, datatype) in RAGGED_KINDS.items()
)


def value(name: str, datatype: str, dims: Dims) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ONNX_TYPE[datatype], dims)


def write(
    directory: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: list[onnx.TensorProto] | None = None,
    domain: str = "",
) -> Path:
    """Write model.onnx into the version's directory, and return that directory.

    domain: the one of operators that a library brings.
    """
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers or [])
    opsets = [helper.make_opsetid("", 21), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.onnx").write_bytes(model.SerializeToString())
    return directory


def with_external_weights(directory: Path) -> Path:
    """Move the weights of model.onnx to a file `weights` beside it."""
    path = directory / "model.onnx"
    (directory / "weights").unlink(missing_ok=True)
    onnx.save_model(
        onnx.load(path), path, save_as_external_data=True, location="weights", size_threshold=0
    )
    assert (directory / "weights").exists()
    return directory


def identity(directory: Path, datatype: str, dims: Dims) -> Path:
    return write(
        directory,
        [helper.make_node("Identity", ["x"], ["y"])],
        [value("x", datatype, dims)],
        [value("y", datatype, dims)],
    )


def add_sub(directory: Path) -> Path:
    return write(
        directory,
        [
            helper.make_node("Add", ["a", "b"], ["sum"]),
            helper.make_node("Sub", ["a", "b"], ["dif"]),
        ],
        [value("a", "INT32", ["n", 4]), value("b", "INT32", ["n", 4])],
        [value("sum", "INT32", ["n", 4]), value("dif", "INT32", ["n", 4])],
    )


def reshaper(directory: Path) -> Path:
    """y = x reshaped to the input `to`; fails if that is impossible."""
    return write(
        directory,
        [helper.make_node("Reshape", ["x", "to"], ["y"])],
        [value("x", "FP32", ["n"]), value("to", "INT64", ["rank"])],
        [value("y", "FP32", None)],
    )


def config(text: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse(
        'name: "m" backend: "onnxruntime" ' + text, model_config_pb2.ModelConfig()
    )


def identity_config(datatype: str, dims: str, max_batch_size: int = 8) -> Any:
    tensor = f"data_type: TYPE_{'STRING' if datatype == 'BYTES' else datatype} dims: {dims}"
    return config(
        f"max_batch_size: {max_batch_size} input {{ name: 'x' {tensor} }} "
        f"output {{ name: 'y' {tensor} }}"
    )


ADD_SUB = """
    max_batch_size: 8
    input { name: "a" data_type: TYPE_INT32 dims: 4 }
    input { name: "b" data_type: TYPE_INT32 dims: 4 }
    output { name: "sum" data_type: TYPE_INT32 dims: 4 }
    output { name: "dif" data_type: TYPE_INT32 dims: 4 }
"""

Input = tuple[str, str, list[int]]


def head(
    *inputs: Input,
    outputs: tuple[str, ...] = (),
    classes: Mapping[str, Classification] | None = None,
) -> bytes:
    request = kserve_pb2.ModelInferRequest(model_name="m")
    for name, datatype, shape in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
    for name in outputs:
        request.outputs.add(name=name)
    for name, wanted in (classes or {}).items():
        request_classification(request.outputs.add(name=name), wanted)
    return request.SerializeToString()


def member(member_head: bytes, *payloads: bytes) -> pb.BatchMember:
    return pb.BatchMember(
        head=member_head, payloads=[pb.Payload(inline=payload) for payload in payloads]
    )


def response_of(wire_response: pb.InferResponse) -> list[tuple[str, str, list[int], bytes]]:
    """Name, datatype, shape and bytes of each output; asserts that it is not an error."""
    assert not wire_response.HasField("error"), wire_response.error
    response = kserve_pb2.ModelInferResponse.FromString(wire_response.head)
    assert response.model_name == "m"
    assert len(response.outputs) == len(wire_response.payloads)
    return [
        (output.name, output.datatype, list(output.shape), payload.inline)
        for output, payload in zip(response.outputs, wire_response.payloads, strict=True)
    ]


def ragged(directory: Path) -> Path:
    """y = -X, and of X's batch inputs what belongs to each request, which has one row.

    X may be of rank 2; the batch inputs are named after their kinds.
    """
    node = helper.make_node
    constants = [
        numpy_helper.from_array(np.array(array, np.int64), name)
        for name, array in {"ZERO": [0], "ONE": [1], "LAST": [-1], "ROWS": [-1, 2]}.items()
    ]
    nodes = [
        node("Neg", ["X"], ["Y"]),
        node("Unsqueeze", ["COUNT", "ONE"], ["OUT_COUNT"]),
        node("Unsqueeze", ["SUM", "ONE"], ["OUT_SUM"]),
        node("Slice", ["SUM_WITH_ZERO", "ZERO", "LAST"], ["STARTS"]),
        node("Unsqueeze", ["STARTS", "ONE"], ["OUT_SUM_WITH_ZERO"]),
        node("Shape", ["LARGEST"], ["SIZE"]),
        node("Cast", ["SIZE"], ["SIZE_FP32"], to=onnx.TensorProto.FLOAT),
        node("Shape", ["OUT_COUNT"], ["COLUMN"]),
        node("Expand", ["SIZE_FP32", "COLUMN"], ["OUT_LARGEST"]),
        node("Identity", ["SHAPE"], ["OUT_SHAPE"]),
        node("Reshape", ["FLAT_SHAPE", "ROWS"], ["OUT_FLAT_SHAPE"]),
    ]
    kinds = {
        "COUNT": "INT32",
        "SUM": "FP32",
        "SUM_WITH_ZERO": "INT32",
        "LARGEST": "FP32",
        "SHAPE": "INT32",
        "FLAT_SHAPE": "FP32",
    }
    inputs = [
        value(name, datatype, ["n", "r"] if name == "SHAPE" else [f"n{name}"])
        for name, datatype in kinds.items()
    ]
    outputs = [
        value(f"OUT_{name}", datatype, ["n", 2 if name.endswith("SHAPE") else 1])
        for name, datatype in kinds.items()
    ]
    x, y = value("X", "FP32", ["m"]), value("Y", "FP32", ["m"])
    return write(directory, nodes, [x, *inputs], [y, *outputs], constants)


def gru(directory: Path, inputs: int, hidden: int, seed: int = 5) -> Path:
    """A GRU's single step, rows first: X and H to Y and H_OUT, which are the new hidden state."""
    random = np.random.default_rng(seed)

    def constant(name: str, array: Any) -> onnx.TensorProto:
        return numpy_helper.from_array(np.asarray(array), name)

    weights = [
        constant("W", random.normal(size=(1, 3 * hidden, inputs)).astype(np.float32)),
        constant("R", random.normal(size=(1, 3 * hidden, hidden)).astype(np.float32)),
        constant("AXIS", np.array([0], np.int64)),
    ]
    node = helper.make_node
    nodes = [
        node("Unsqueeze", ["X", "AXIS"], ["X1"]),
        node("Unsqueeze", ["H", "AXIS"], ["H1"]),
        node("GRU", ["X1", "W", "R", "", "", "H1"], ["", "Y1"], hidden_size=hidden),
        node("Squeeze", ["Y1", "AXIS"], ["Y"]),
        node("Identity", ["Y"], ["H_OUT"]),
    ]
    return write(
        directory,
        nodes,
        [value("X", "FP32", [None, inputs]), value("H", "FP32", [None, hidden])],
        [value("Y", "FP32", [None, hidden]), value("H_OUT", "FP32", [None, hidden])],
        weights,
    )
