"""A model repository of small ONNX models for tests that start the real mesh."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# KServe's name, ONNX's type, numpy's type.
DATATYPES = {
    "BOOL": (TensorProto.BOOL, np.bool_),
    "UINT8": (TensorProto.UINT8, np.uint8),
    "UINT16": (TensorProto.UINT16, np.uint16),
    "UINT32": (TensorProto.UINT32, np.uint32),
    "UINT64": (TensorProto.UINT64, np.uint64),
    "INT8": (TensorProto.INT8, np.int8),
    "INT16": (TensorProto.INT16, np.int16),
    "INT32": (TensorProto.INT32, np.int32),
    "INT64": (TensorProto.INT64, np.int64),
    "FP16": (TensorProto.FLOAT16, np.float16),
    "FP32": (TensorProto.FLOAT, np.float32),
    "FP64": (TensorProto.DOUBLE, np.float64),
    "BYTES": (TensorProto.STRING, np.object_),
}


def make_repository(root: Path, datatypes: Iterable[str] = ("BYTES", "FP32")) -> Path:
    """Identity models of these datatypes, add_sub, a slow one, one that reads text, one broken."""
    for datatype in datatypes:
        save_identity(root, f"identity_{datatype.lower()}", DATATYPES[datatype][0], _batching(""))
    _save(root, "add_sub", _add_sub(), None)
    _save(root, "partial", _add_sub(), 'name: "partial"\nmax_batch_size: 8\n')
    one_instance = "instance_group [{ count: 1 kind: KIND_CPU }]\n"
    labels = 'output { name: "OUTPUT0" label_filename: "labels.txt" }\n'
    config = _batching("max_queue_delay_microseconds: 200", one_instance + labels)
    _save(root, "doubler", _doubler(), config)
    (root / "doubler" / "labels.txt").write_text("zero\none\n\nthree\n")
    _save(root, "slow", _slow(), one_instance)
    _save(root, "upper", _upper(), one_instance)
    broken = root / "broken" / "1" / "model.onnx"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"this is no model")
    return root


def save_echo(root: Path, name: str, more: str = "") -> None:
    """A model of the identity backend, of which any number loads in no time. more: of its
    configuration.
    """
    (root / name / "1").mkdir(parents=True)
    tensors = "".join(
        f'{kind} {{ name: "{kind.upper()}0" data_type: TYPE_FP32 dims: [-1] }}\n'
        for kind in ("input", "output")
    )
    (root / name / "config.pbtxt").write_text(
        f'backend: "identity"\nmax_batch_size: 8\n{tensors}{more}'
    )


def save_identity(root: Path, name: str, onnx_type: int, config: str) -> None:
    """OUTPUT0 = INPUT0, of any length."""
    _save(root, name, _identity(onnx_type), config)


def save_multiplier(root: Path, name: str, factor: int, config: str) -> None:
    """O = P = factor * I, INT64 [1], after about a tenth of a second; an error from 1000 on."""
    slow = _slow()
    constants = [
        numpy_helper.from_array(np.array([300], np.int64), "TURNS"),
        numpy_helper.from_array(np.array([factor], np.int64), "factor"),
        numpy_helper.from_array(np.zeros(1000, np.int64), "zeros"),
    ]
    nodes = [
        *slow.node[:-1],
        helper.make_node("Gather", ["zeros", "I"], ["zero"]),
        helper.make_node("Mul", ["I", "factor"], ["multiplied"]),
        helper.make_node("Add", ["multiplied", "zero"], ["exact"]),
        helper.make_node("Add", ["exact", "none"], ["O"]),
        helper.make_node("Identity", ["O"], ["P"]),
    ]
    tensors = [helper.make_tensor_value_info(each, TensorProto.INT64, [1]) for each in "IOP"]
    graph = helper.make_graph(
        nodes, "multiplier", tensors[:1], tensors[1:], [*slow.initializer, *constants]
    )
    _save(root, name, graph, config)


def _batching(body: str, more: str = "") -> str:
    return f"max_batch_size: 16\ndynamic_batching {{ {body} }}\n{more}"


def _save(
    root: Path, name: str, graph: onnx.GraphProto, config: str | None, version: int = 1
) -> None:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    directory = root / name / str(version)
    directory.mkdir(parents=True, exist_ok=True)
    # Atomically, as in a deployment: a reader sees the old file or the new one.
    onnx.save(model, directory / "model.new")
    (directory / "model.new").rename(directory / "model.onnx")
    if config is not None:
        (root / name / "config.pbtxt").write_text(config)


def _identity(onnx_type: int) -> onnx.GraphProto:
    shape = ["batch", "length"]
    return helper.make_graph(
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        "identity",
        [helper.make_tensor_value_info("INPUT0", onnx_type, shape)],
        [helper.make_tensor_value_info("OUTPUT0", onnx_type, shape)],
    )


def _upper() -> onnx.GraphProto:
    """Return a graph whose operator looks into strings, which must be UTF-8."""
    upper = {"case_change_action": "UPPER", "locale": "C"}
    return helper.make_graph(
        [helper.make_node("StringNormalizer", ["INPUT0"], ["OUTPUT0"], **upper)],
        "upper",
        [helper.make_tensor_value_info("INPUT0", TensorProto.STRING, [1, "length"])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.STRING, [1, "length"])],
    )


def _add_sub() -> onnx.GraphProto:
    value = [
        helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", 16])
        for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    ]
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    return helper.make_graph(nodes, "add_sub", value[:2], value[2:])


def save_scaler(root: Path, name: str, factor: int, config: str, version: int = 1) -> None:
    """OUTPUT0 = factor * INPUT0, FP32 [8]; an existing file is replaced."""
    _save(root, name, _scaler(factor), config, version)


def save_sign(root: Path, name: str, config: str) -> None:
    """POSITIVE = INPUT0[0] > 0, of FP32 [8]; BOOL [1]."""
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["INPUT0", "first"], ["value"], axis=1),
            helper.make_node("Greater", ["value", "zero"], ["POSITIVE"]),
        ],
        "sign",
        [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("POSITIVE", TensorProto.BOOL, ["batch", 1])],
        [
            numpy_helper.from_array(np.array([0], np.int64), "first"),
            numpy_helper.from_array(np.array(0, np.float32), "zero"),
        ],
    )
    _save(root, name, graph, config)


def save_heavy(root: Path, name: str, size_bytes: int) -> None:
    """OUTPUT0 = the INPUT0-th of very many numbers, FP32 [1]; one instance."""
    weights = numpy_helper.from_array(np.ones(size_bytes // 4, np.float32), "weights")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["weights", "INPUT0"], ["OUTPUT0"])],
        "heavy",
        [helper.make_tensor_value_info("INPUT0", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, [1])],
        [weights],
    )
    _save(root, name, graph, "instance_group [{ count: 1 kind: KIND_CPU }]")


def _doubler() -> onnx.GraphProto:
    return _scaler(2)


def _scaler(factor: int) -> onnx.GraphProto:
    """OUTPUT0 = factor * INPUT0, FP32 [8]."""
    number = numpy_helper.from_array(np.array(factor, np.float32), "factor")
    return helper.make_graph(
        [helper.make_node("Mul", ["INPUT0", "factor"], ["OUTPUT0"])],
        "scaler",
        [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, ["batch", 8])],
        [number],
    )


def _slow() -> onnx.GraphProto:
    """TURNS times a matrix product; OUTPUT0 = TURNS. A thousand turns take tenths of a second."""
    matrix = numpy_helper.from_array(np.eye(256, dtype=np.float32), "eye")
    yes = numpy_helper.from_array(np.array(True), "yes")
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state_in", "eye"], ["state_out"]),
            helper.make_node("Identity", ["go_in"], ["go_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_in", TensorProto.FLOAT, [256, 256]),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_out", TensorProto.FLOAT, [256, 256]),
        ],
    )
    nodes = [
        helper.make_node("Squeeze", ["TURNS"], ["count"]),
        helper.make_node("Loop", ["count", "yes", "eye"], ["product"], body=body),
        helper.make_node("ReduceMin", ["product"], ["least"], keepdims=0),
        helper.make_node("Cast", ["least"], ["none"], to=TensorProto.INT64),
        helper.make_node("Add", ["TURNS", "none"], ["OUTPUT0"]),
    ]
    return helper.make_graph(
        nodes,
        "slow",
        [helper.make_tensor_value_info("TURNS", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.INT64, [1])],
        [matrix, yes],
    )
