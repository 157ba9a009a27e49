"""Peer: the real tritonserver of the wheel nvidia-pytriton, with its Python backend.

This module makes Triton's environment on first use, and starts Triton. This module must not know
about load or figures.
"""

import os
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.failure import BenchError
from benchmarks.models.workload import Workload
from benchmarks.peers import environment
from benchmarks.process import Command, ServerProcess

DEFAULT_VENV = environment.CACHE / "triton"
_PYTRITON = "0.7.0"  # It has tritonserver 2.51.


def ensure_venv(venv: Path) -> None:
    """Make the environment if it is missing: about 500 MB."""
    if venv.exists() and not (venv / environment.MARK).exists() and _dist_directories(venv):
        return  # A user's own environment is left as it is.
    environment.ensure(venv, f"nvidia-pytriton=={_PYTRITON}")


def _dist_directories(venv: Path) -> list[Path]:
    return sorted(venv.glob("lib/python3*/site-packages/pytriton/tritonserver"))


def _place_stub(dist: Path, python: str) -> None:
    """Place the Python backend's stub beside its library, where it looks.

    The wheel has one per Python.
    """
    stub = dist / "backends" / "python" / "triton_python_backend_stub"
    source = dist / "python_backend_stubs" / python / "triton_python_backend_stub"
    if not source.exists():
        raise BenchError(f"nvidia-pytriton has no Python backend stub for Python {python}")
    if not stub.exists():
        shutil.copy2(source, stub)


def command(venv: Path, repository: Path, log: Path, ports: tuple[int, int, int]) -> Command:
    """Return the command that starts the server."""
    found = _dist_directories(venv)
    if not found:
        raise BenchError(f"{venv} has no nvidia-pytriton")
    dist = found[-1]
    _place_stub(dist, dist.parts[-4].removeprefix("python"))
    libraries = dist.parents[1] / "nvidia_pytriton.libs"
    path = f"{venv / 'bin'}:{os.environ.get('PATH', '')}"
    # The stub embeds Python: it needs libpython, and finds the environment by the PATH's python3.
    library_path = f"{libraries}:{sysconfig.get_config_var('LIBDIR')}"
    http_port, grpc_port, metrics_port = ports
    argv = [
        str(dist / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        f"--backend-directory={dist / 'backends'}",
        f"--backend-config=python,shm-region-prefix-name={_shm_prefix(http_port)}",
    ]
    return Command(argv, log, {"PATH": path, "LD_LIBRARY_PATH": library_path})


def _shm_prefix(http_port: int) -> str:
    return f"nereid_bench_{http_port}_"


def sweep(http_port: int) -> None:
    """Remove the regions that Triton leaves behind when it is killed."""
    for region in Path("/dev/shm").glob(f"{_shm_prefix(http_port)}*"):
        region.unlink(missing_ok=True)


@contextmanager
def serve(
    venv: Path, work: Path, ports: tuple[int, int, int], workload: Workload
) -> Iterator[ServerProcess]:
    """Run the server until the context ends."""
    repository = work / "triton-repository"
    workload.write(repository, "python")
    try:
        with ServerProcess(command(venv, repository, work / "triton.log", ports)) as server:
            yield server
    finally:
        sweep(ports[0])
