"""A mesh with a memory budget, and its metrics."""

import re
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import process
from benchmarks.failure import BenchError
from benchmarks.peers import nereid
from benchmarks.soak.memory import memory_of

_START_S = 90.0
_SAMPLE_S = 0.1
_MEMORY = re.compile(r'nereid_model_memory_bytes\{model="([^"]+)"[^}]*device="cpu"\} (\d+)')
_LOADS = re.compile(r"^nereid_on_demand_loads_total (\d+)", re.MULTILINE)


class Usage(NamedTuple):
    """Memory usage at one moment; `sizes`: maps a model in memory to its bytes."""

    sizes: dict[str, int]
    loads: int


class Mesh:
    """Running mesh."""

    def __init__(self, server: process.ServerProcess, grpc_port: int, metrics_port: int) -> None:
        self.server = server
        self.grpc_port = grpc_port
        self._metrics = f"http://127.0.0.1:{metrics_port}/metrics"

    def usage(self) -> Usage:
        """Return the present usage."""
        with urllib.request.urlopen(self._metrics, timeout=10) as response:
            page = response.read().decode()
        loads = _LOADS.search(page)
        if loads is None:
            raise BenchError("the mesh counts no loads on demand")
        sizes = {name: int(size) for name, size in _MEMORY.findall(page)}
        return Usage(sizes, int(loads[1]))

    def executor_bytes(self) -> int:
        """Return the resident memory of the executors in bytes."""
        processes = self.server.processes()
        found = [memory_of(pid) for pid, name in processes.items() if "executor" in name]
        return sum(stat.rss for stat in found if stat is not None) << 10


class Watch:
    """Records the largest number of models, and of their bytes, that are in memory."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._end = threading.Event()
        self.most_models = self.most_bytes = 0

    def run(self) -> None:
        """Record until end() is called."""
        while not self._end.wait(_SAMPLE_S):
            sizes = self._mesh.usage().sizes
            self.most_models = max(self.most_models, len(sizes))
            self.most_bytes = max(self.most_bytes, sum(sizes.values()))

    def end(self) -> None:
        """End the recording."""
        self._end.set()


@contextmanager
def watching(mesh: Mesh) -> Iterator[Watch]:
    """Record memory usage until the context ends."""
    watch = Watch(mesh)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        yield watch
    finally:
        watch.end()
        thread.join()


@contextmanager
def serve(repository: Path, work: Path, budget: int, flags: Sequence[str]) -> Iterator[Mesh]:
    """Run a mesh until the context ends.

    budget: bytes of host memory that models may use. A later mesh with the same `work` folder
    remembers how much memory models need.
    """
    first, second, third = process.free_ports(3)
    given = ["--executors=1", "--lazy-loading", f"--model-memory-budget=cpu={budget}"]
    given += [f"--state-directory={work / 'state'}", *flags]
    command = nereid.command(repository, work / "log", (first, second, third), given)
    with process.ServerProcess(command) as server:
        mesh = Mesh(server, second, third)
        give_up = time.monotonic() + _START_S
        while f"localhost:{first}" not in server.log_tail(30):
            server.require_alive()
            if time.monotonic() > give_up:
                raise BenchError(f"not ready after {_START_S:g} s:\n{server.log_tail()}")
            time.sleep(0.1)
        yield mesh
