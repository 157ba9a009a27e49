"""Peer LitServe: one worker, the same batch size as the other peers, its own JSON format."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.models.workload import Workload
from benchmarks.peers import environment, scripted
from benchmarks.process import Command, ServerProcess

VENV = environment.CACHE / "litserve"
REQUIREMENT = "litserve==0.2.19"


def ensure_venv() -> None:
    """Make the environment if it is missing."""
    environment.ensure(VENV, REQUIREMENT)


@contextmanager
def serve(work: Path, ports: tuple[int, int, int], workload: Workload) -> Iterator[ServerProcess]:
    """Run the server until the context ends."""
    datatypes = {name: array.dtype.name for name, array in workload.inputs.items()}
    variables = scripted.environment(workload, counts_file(work))
    variables["NEREID_BENCH_DATATYPES"] = json.dumps(datatypes)
    argv = [str(VENV / "bin" / "python"), str(scripted.SCRIPTS / "litserve_server.py")]
    argv += [str(ports[0]), str(workload.max_batch_size), str(scripted.BATCH_WAIT_S)]
    with ServerProcess(Command(argv, work / "litserve.log", variables)) as server:
        yield server


def counts_file(work: Path) -> Path:
    """Return the file in which the scripts count executions."""
    return work / "litserve.counts"
