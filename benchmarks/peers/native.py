"""Peer: a real tritonserver with its C++ ONNX Runtime backend.

It is started by a script that ``NEREID_NATIVE_TRITON`` names: ``SCRIPT REPOSITORY HTTP_PORT
GRPC_PORT METRICS_PORT``. NVIDIA's images have one; a wheel of it does not exist.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.failure import BenchError
from benchmarks.models.workload import Workload
from benchmarks.process import Command, ServerProcess

NAME = "triton-native"
_VARIABLE = "NEREID_NATIVE_TRITON"


def is_given() -> bool:
    """Return whether there is such a script."""
    return _VARIABLE in os.environ


def require() -> None:
    """Raise BenchError unless there is such a script."""
    script = os.environ.get(_VARIABLE, "")
    if not os.access(script, os.X_OK):
        raise BenchError(f"{_VARIABLE} must name the script that starts a native tritonserver")


def command(repository: Path, log: Path, ports: tuple[int, int, int]) -> Command:
    """Return the command that starts the server."""
    return Command([os.environ[_VARIABLE], str(repository), *map(str, ports)], log)


@contextmanager
def serve(work: Path, ports: tuple[int, int, int], workload: Workload) -> Iterator[ServerProcess]:
    """Run the server for the time of the context."""
    repository = work / f"{NAME}-repository"
    workload.write(repository, "onnxruntime")
    with ServerProcess(command(repository, work / f"{NAME}.log", ports)) as server:
        yield server
