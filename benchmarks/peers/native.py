"""Peer: a real tritonserver with its C++ ONNX Runtime backend.

The environment variable ``NEREID_NATIVE_TRITON`` names a script that starts the server: ``SCRIPT
REPOSITORY HTTP_PORT GRPC_PORT METRICS_PORT``. This tritonserver is in NVIDIA's images; there is no
wheel of it.
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
    """Return whether the environment names a script."""
    return _VARIABLE in os.environ


def require() -> None:
    """Raise BenchError unless the environment names a script."""
    script = os.environ.get(_VARIABLE, "")
    if not os.access(script, os.X_OK):
        raise BenchError(f"{_VARIABLE} must name the script that starts a native tritonserver")


def command(repository: Path, log: Path, ports: tuple[int, int, int]) -> Command:
    """Return the command that starts the server."""
    return Command([os.environ[_VARIABLE], str(repository), *map(str, ports)], log)


@contextmanager
def serve(work: Path, ports: tuple[int, int, int], workload: Workload) -> Iterator[ServerProcess]:
    """Run the server until the context ends."""
    repository = work / f"{NAME}-repository"
    workload.write(repository, "onnxruntime")
    with ServerProcess(command(repository, work / f"{NAME}.log", ports)) as server:
        yield server
