"""Nereid as a user starts it: the command ``nereid serve`` of this environment."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.failure import BenchError
from benchmarks.models.workload import Workload
from benchmarks.process import Command, ServerProcess
from benchmarks.source_tree import source_path


@dataclass(frozen=True)
class Variant:
    """Variant of Nereid.

    flags: flags of ``nereid serve``. tree: a copy of the project to run instead of the installed
    one.
    """

    flags: Sequence[str] = ()
    tree: Path | None = None


def _program() -> str:
    program = Path(sys.executable).with_name("nereid")
    if not program.exists():
        raise BenchError(f"{program} is missing: install the project into this environment first")
    return str(program)


def _environment(tree: Path | None) -> dict[str, str]:
    """Return the environment for a tree.

    ``python -m`` looks in the working directory first, other processes look at PYTHONPATH.
    """
    return {} if tree is None else {"PYTHONPATH": source_path(tree)}


def version(tree: Path | None) -> str:
    """Return the output of ``nereid --version``, which also says if hot modules are compiled."""
    ran = subprocess.run(
        [_program(), "--version"],
        cwd=tree,
        env={**os.environ, **_environment(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise BenchError(f"nereid --version in {tree or 'this environment'}: {ran.stderr}")
    return ran.stdout.strip().removeprefix("nereid ")


def command(
    repository: Path,
    log: Path,
    ports: tuple[int, int, int],
    flags: Sequence[str],
    tree: Path | None = None,
) -> Command:
    """Return the command that starts the mesh."""
    http_port, grpc_port, metrics_port = ports
    argv = [
        _program(),
        "serve",
        f"--model-repository={repository}",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
        *flags,
    ]
    return Command(argv, log, _environment(tree), tree)


@contextmanager
def serve(
    name: str, work: Path, ports: tuple[int, int, int], variant: Variant, workload: Workload
) -> Iterator[ServerProcess]:
    """Run the mesh until the context ends."""
    repository = work / f"{name}-repository"
    workload.write(repository, "onnxruntime")
    log = work / f"{name}.log"
    started = command(repository, log, ports, variant.flags, variant.tree)
    with ServerProcess(started) as server:
        yield server
