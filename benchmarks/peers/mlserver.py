"""Peer MLServer with its default settings: adaptive batching, one worker process."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.models.workload import Workload
from benchmarks.peers import environment, scripted
from benchmarks.process import Command, ServerProcess

VENV = environment.CACHE / "mlserver"
# Its workers do not start with newer versions of uvloop.
REQUIREMENTS = ("mlserver==1.7.1", "uvloop==0.21.0")


def ensure_venv() -> None:
    """Make the environment if it is missing."""
    environment.ensure(VENV, *REQUIREMENTS)


def _write(folder: Path, workload: Workload, ports: tuple[int, int, int]) -> None:
    model = folder / workload.served
    model.mkdir(parents=True, exist_ok=True)
    for script in ("mlserver_model.py", "batched_session.py"):
        shutil.copy(scripted.SCRIPTS / script, model)
    settings = {
        "debug": False,
        "host": "127.0.0.1",
        "http_port": ports[0],
        "grpc_port": ports[1],
        "metrics_port": ports[2],
        "metrics_dir": str(folder / "metrics"),
        "parallel_workers": 1,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    described = {
        "name": workload.served,
        "implementation": "mlserver_model.OnnxModel",
        "max_batch_size": workload.max_batch_size,
        "max_batch_time": scripted.BATCH_WAIT_S,
    }
    (model / "model-settings.json").write_text(json.dumps(described))


@contextmanager
def serve(work: Path, ports: tuple[int, int, int], workload: Workload) -> Iterator[ServerProcess]:
    """Run the server until the context ends."""
    folder = work / "mlserver"
    _write(folder, workload, ports)
    variables = scripted.environment(workload, counts_file(work))
    argv = [str(VENV / "bin" / "python"), str(VENV / "bin" / "mlserver"), "start", str(folder)]
    with ServerProcess(Command(argv, work / "mlserver.log", variables)) as server:
        yield server


def counts_file(work: Path) -> Path:
    """Return the file in which the scripts count executions."""
    return work / "mlserver.counts"
