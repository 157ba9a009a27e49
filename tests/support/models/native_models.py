"""ONNX models with operators of their own: native code, which a C compiler makes here."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from onnx import helper

from tests.support.models import onnx_models

LIBRARY = "operators.so"
CONFIG = f'model_operations {{ op_library_filename: "{LIBRARY}" }} '
DOING = (
    'input { name: "command" data_type: TYPE_UINT8 dims: -1 } '
    'output { name: "errno" data_type: TYPE_INT64 dims: 1 } '
)

_SOURCE = Path(__file__).parent / "native_operator.c"


@cache
def library(*options: str) -> bytes:
    """Return the library of operators. -DABORT: one whose constructor aborts."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / LIBRARY
        command = [compiler, "-shared", "-fPIC", "-O1", *options, "-o", str(path), str(_SOURCE)]
        subprocess.run(command, check=True)
        return path.read_bytes()


def add_library(version: Path) -> Path:
    """Write the library of operators beside a version's directory, and return that directory."""
    (version.parent / LIBRARY).write_bytes(library())
    return version


def doubler(version: Path) -> Path:
    """y = 2 x by an operator of the library; x is FP32 of any shape with two dimensions."""
    onnx_models.write(
        version,
        [helper.make_node("Twice", ["x"], ["y"], domain="native")],
        [onnx_models.value("x", "FP32", ["n", "m"])],
        [onnx_models.value("y", "FP32", ["n", "m"])],
        domain="native",
    )
    return add_library(version)


def doer(version: Path) -> Path:
    """errno of a command that native_operator.c executes."""
    onnx_models.write(
        version,
        [helper.make_node("Do", ["command"], ["errno"], domain="native")],
        [onnx_models.value("command", "UINT8", ["n"])],
        [onnx_models.value("errno", "INT64", [1])],
        domain="native",
    )
    return add_library(version)
