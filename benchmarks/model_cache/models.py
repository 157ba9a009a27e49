"""Models that consist only of weights. A response shows which model it came from.

Each model looks up rows of its table. Row i of model n is n times the table's length, plus i.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

_CONFIG = """\
backend: "onnxruntime"
input [ { name: "ROWS" data_type: TYPE_INT32 dims: [ 4 ] } ]
output [ { name: "VALUES" data_type: TYPE_INT32 dims: [ 4 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
parameters { key: "inter_op_thread_count" value { string_value: "1" } }
"""
_ROWS_PER_MEBIBYTE = (1 << 20) // 4

Rows = npt.NDArray[np.int32]


def name_of(number: int) -> str:
    """Return the name of a model."""
    return f"m{number:03d}"


def rows_of(seed: int, mebibytes: int) -> Rows:
    """Return row numbers, which can be requested from any model."""
    length = mebibytes * _ROWS_PER_MEBIBYTE
    return np.random.default_rng(seed).integers(length, size=4, dtype=np.int32)


def values_of(number: int, rows: Rows, mebibytes: int) -> Rows:
    """Return the expected response."""
    return rows + np.int32(number * mebibytes * _ROWS_PER_MEBIBYTE)


def write_repository(root: Path, models: int, mebibytes: int) -> Path:
    """Write the models, and return the repository."""
    length = mebibytes * _ROWS_PER_MEBIBYTE
    table = np.arange(length, dtype=np.int32)
    for number in range(models):
        version = root / name_of(number) / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(_graph(table + np.int32(number * length)))
        (version.parent / "config.pbtxt").write_text(_CONFIG)
    return root


def _graph(table: Rows) -> bytes:
    body = helper.make_graph(
        [helper.make_node("Gather", ["TABLE", "ROWS"], ["VALUES"])],
        "lookup",
        [helper.make_tensor_value_info("ROWS", TensorProto.INT32, [4])],
        [helper.make_tensor_value_info("VALUES", TensorProto.INT32, [4])],
        [numpy_helper.from_array(table, "TABLE")],
    )
    proto = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(proto.SerializeToString())
