"""Workload: a model that can be written for each peer, its request and its response.

This module must not know how a server is started or loaded.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]

SCRIPTS = Path(__file__).with_name("scripts")
# Script for Triton's Python backend: any ONNX model, as well served as one can.
ONNX_SCRIPT = SCRIPTS / "onnx_model.py"
DATATYPES = {"float32": "FP32", "int64": "INT64", "int32": "INT32"}


@dataclass(frozen=True)
class Workload:
    """Model under test.

    served: the model's name in requests. inputs: some rows of each input; the first row is the
    request of the load. expected: the same rows of the requested outputs. write: writes the model
    into a repository, for the onnxruntime backend or for the Python backend. graph: the ONNX file,
    for peers that read no repository. batched: name of the model whose executions show the batch
    size. protocols, concurrency: measured by default. batches: batch sizes of the bare loop.
    responses: number of responses to each request. seconds: default time for which a cell is
    loaded. warm_s: minimum time of load before the measurement.
    """

    name: str
    served: str
    inputs: Arrays
    expected: Arrays
    write: Callable[[Path, str], None]
    graph: Path | None
    batched: str
    max_batch_size: int = 64
    tolerance: float = 1e-4
    protocols: tuple[str, ...] = ("grpc", "http")
    concurrency: tuple[int, ...] = (1, 16, 64)
    batches: tuple[int, ...] = (1, 16, 64)
    responses: int = 1
    seconds: float = 2.0
    warm_s: float = 1.0

    def request(self) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs of the load's request."""
        return self.rows(self.inputs, 1)

    def response(self) -> dict[str, npt.NDArray[Any]]:
        """Return the expected outputs for the load's request."""
        return self.rows(self.expected, 1)

    def rows(self, arrays: Arrays, count: int) -> dict[str, npt.NDArray[Any]]:
        """Return the first rows of each array."""
        return {
            name: array[:count] if self.max_batch_size else array for name, array in arrays.items()
        }


def datatype(array: npt.NDArray[Any]) -> str:
    """Return the name of an array's datatype in the protocol."""
    return DATATYPES[array.dtype.name]


def is_close(found: npt.NDArray[Any], expected: npt.NDArray[Any], tolerance: float) -> bool:
    """Return whether two arrays agree within the tolerance, which is relative above 1."""
    if found.size != expected.size:
        return False
    return bool(
        np.allclose(found.reshape(expected.shape), expected, rtol=tolerance, atol=tolerance)
    )


def write_onnx(repository: Path, name: str, graph: Path, config: str, backend: str) -> None:
    """Write an ONNX model for the onnxruntime backend, or with model.py for the Python backend.

    config: text with ``{backend}`` in place of the backend's name.
    """
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    target = version / "model.onnx"
    if graph != target:
        shutil.copyfile(graph, target)
    if backend == "python":
        shutil.copy(ONNX_SCRIPT, version / "model.py")
    (repository / name / "config.pbtxt").write_text(config.format(backend=backend))


def write_script(repository: Path, name: str, script: str, config: str) -> None:
    """Write a model that every peer runs as a Python model."""
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copy(SCRIPTS / script, version / "model.py")
    (repository / name / "config.pbtxt").write_text(config)
