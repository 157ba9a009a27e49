"""Python models that treat their arrays as people do: returned, viewed, kept, written to, left out
or of a datatype that numpy lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np

from tests.differential.case import Arrays, Case, DirectCallError
from tests.differential.onnx_graphs import random_array

Array = np.ndarray[Any, np.dtype[Any]]
_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
        self.buffers = {{}}

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "X")
            x = tensor.as_numpy()
{body}
            made = [pb_utils.Tensor(name, array) for name, array in (("Y", y), ("Z", z))]
            responses.append(pb_utils.InferenceResponse(made))
        return responses
"""
_OPTIONAL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            names = [tensor.name() for tensor in request.inputs()]
            assert (pb_utils.get_input_tensor_by_name(request, "B") is None) == ("B" not in names)
            given = [pb_utils.get_input_tensor_by_name(request, name) for name in "AB"]
            a, b = [tensor if tensor is None else tensor.as_numpy() for tensor in given]
            either = b if a is None else a
            y = either if a is None or b is None else a - b
            z = np.full((len(either), 1), " ".join(sorted(names)), np.object_)
            made = [pb_utils.Tensor("Y", y), pb_utils.Tensor("Z", z)]
            responses.append(pb_utils.InferenceResponse(made))
        return responses
"""
_BF16 = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "X")
            made = [pb_utils.Tensor.from_dlpack(name, given.to_dlpack()) for name in "YZ"]
            responses.append(pb_utils.InferenceResponse(made))
        return responses
"""


def _refused(_: Array) -> tuple[Array, Array]:
    raise DirectCallError("NumPy dtype is not supported")


# Each leaves y and z, and the functions say what they are.
_BODIES: tuple[tuple[str, str, Callable[[Array], tuple[Array, Array]]], ...] = (
    ("input_returned", "y = z = x", lambda x: (x, x)),
    ("views", "y, z = x[:, ::-1], x[:, 1::2]", lambda x: (x[:, ::-1], x[:, 1::2])),
    (
        "fortran_order",
        "y, z = np.asfortranarray(x), np.asfortranarray(x).T",
        lambda x: (x, x.T),
    ),
    (
        "written_to",
        "before = x.copy()\nx -= 1\nx /= 2\ny, z = x, before",
        lambda x: ((x - np.float32(1)) / np.float32(2), x),
    ),
    (
        "kept_and_changed",
        "for kept in self.kept:\n    kept[...] = 99\nself.kept = [x]\ny, z = x, x * 2",
        lambda x: (x, x * 2),
    ),
    (
        "one_output_buffer",
        "y = np.multiply(x, 3, out=self.buffers.setdefault(x.shape, x.copy()))\nz = y[:, :1]",
        lambda x: (x * np.float32(3), x[:, :1] * np.float32(3)),
    ),
    # As in Triton's own constructor of tensors, whose texts clients know.
    ("byte_swapped", "y, z = x.astype('>f4'), x", _refused),
    (
        "read_only_and_subclass",
        "y = x.copy()\ny.setflags(write=False)\nz = np.ma.masked_array(x, mask=x > 0)",
        lambda x: (x, x),
    ),
    (
        "by_dlpack",
        "y = pb_utils.Tensor.from_dlpack('Y', tensor.to_dlpack()).as_numpy()\nz = y + 1",
        lambda x: (x, x + np.float32(1)),
    ),
)


def cases(seed: int) -> list[Case]:
    """Return the models, each with small tensors and with such as travel in shared memory."""
    made = [
        _case(seed, f"{name}_{columns}", body, function, columns)
        for name, body, function in _BODIES
        for columns in (6, 18_000)
    ]
    return [*made, *(_bf16(seed, columns) for columns in (6, 36_000)), _optional(seed)]


def _case(
    seed: int,
    name: str,
    body: str,
    function: Callable[[Array], tuple[Array, Array]],
    columns: int,
) -> Case:
    def make_request(number: int) -> Arrays:
        rows = 1 + number % 3
        return {"X": random_array(np.random.default_rng([seed, number]), "FP32", (rows, columns))}

    def call(arrays: Arrays) -> Arrays:
        y, z = function(arrays["X"])
        return {"Y": np.ascontiguousarray(y), "Z": np.ascontiguousarray(z)}

    return Case(
        name,
        "python",
        False,
        _building(_MODEL.format(body=indent(body, " " * 12))),
        (("X", "FP32", (-1, columns)),),
        (("Y", "FP32", (-1, -1)), ("Z", "FP32", (-1, -1))),
        make_request,
        call,
    )


def _bf16(seed: int, columns: int) -> Case:
    def make_request(number: int) -> Arrays:
        rng = np.random.default_rng([seed, number])
        return {"X": random_array(rng, "BF16", (1 + number % 3, columns))}

    return Case(
        f"bf16_by_dlpack_{columns}",
        "python",
        True,
        _building(_BF16),
        (("X", "BF16", (columns,)),),
        (("Y", "BF16", (columns,)), ("Z", "BF16", (columns,))),
        make_request,
        lambda arrays: {"Y": arrays["X"], "Z": arrays["X"]},
    )


def _optional(seed: int) -> Case:
    """Requests with one of two inputs or with both, which a batch can have side by side."""

    def make_request(number: int) -> Arrays:
        rng = np.random.default_rng([seed, number])
        names = ("A", "AB", "B")[number % 3]
        return {name: random_array(rng, "FP32", (2, 5)) for name in names}

    def call(arrays: Arrays) -> Arrays:
        a, b = arrays.get("A"), arrays.get("B")
        y = a - b if a is not None and b is not None else a if a is not None else b
        assert y is not None
        return {"Y": y, "Z": np.full((2, 1), " ".join(sorted(arrays)).encode(), np.object_)}

    return Case(
        "optional_inputs",
        "python",
        True,
        _building(_OPTIONAL),
        (("A", "FP32", (5,)), ("B", "FP32", (5,))),
        (("Y", "FP32", (5,)), ("Z", "BYTES", (1,))),
        make_request,
        call,
        optional=frozenset("AB"),
    )


def _building(text: str) -> Callable[[Path], None]:
    def build(directory: Path) -> None:
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(text)

    return build
