"""Nereid as a user starts it: ``nereid serve`` from this environment, known by its command line."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.failure import BenchError
from benchmarks.models.workload import Workload
from benchmarks.process import Command, ServerProcess


def command(
    repository: Path, log: Path, ports: tuple[int, int, int], flags: Sequence[str]
) -> Command:
    program = Path(sys.executable).with_name("nereid")
    if not program.exists():
        raise BenchError(f"{program} is missing: install the project into this environment first")
    http_port, grpc_port, metrics_port = ports
    argv = [
        str(program),
        "serve",
        f"--model-repository={repository}",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
        *flags,
    ]
    return Command(argv, log)


@contextmanager
def serve(
    name: str, work: Path, ports: tuple[int, int, int], flags: Sequence[str], workload: Workload
) -> Iterator[ServerProcess]:
    repository = work / f"{name}-repository"
    workload.write(repository, "onnxruntime")
    with ServerProcess(command(repository, work / f"{name}.log", ports, flags)) as server:
        yield server
