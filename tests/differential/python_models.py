"""Python models that treat their arrays as people do: returned, viewed, kept, written to."""

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
    return [
        _case(seed, f"{name}_{columns}", body, function, columns)
        for name, body, function in _BODIES
        for columns in (6, 18_000)
    ]


def _case(
    seed: int,
    name: str,
    body: str,
    function: Callable[[Array], tuple[Array, Array]],
    columns: int,
) -> Case:
    def build(directory: Path) -> None:
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(_MODEL.format(body=indent(body, " " * 12)))

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
        build,
        (("X", "FP32", (-1, columns)),),
        (("Y", "FP32", (-1, -1)), ("Z", "FP32", (-1, -1))),
        make_request,
        call,
    )
