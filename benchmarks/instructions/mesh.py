"""Processes of `nereid serve`, each started under a counting program."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import process, wire
from benchmarks.models import mlp
from nereid_mesh.serve.planning import plan_mesh

# Counted processes are up to a hundred times as slow: none may be taken for dead.
_PATIENCE = "--mesh-silence-secs=1200"
_READY_S = 600.0
_NAMES = {"nereid_mesh.serve.joined": "joined", "nereid_executor": "executor"}

Wrap = Callable[[str, Sequence[str]], Sequence[str]]


@dataclass(frozen=True)
class CountedMesh:
    """A running mesh; `address`: its ports. `pids`: maps a process's name to its id."""

    address: wire.Address
    pids: dict[str, int]


@contextmanager
def counted_mesh(
    work: Path, backend: str, flags: Sequence[str], wrap: Wrap
) -> Iterator[CountedMesh]:
    """Run a mesh until the context ends.

    wrap: gets a process's name and the interpreter's arguments, and returns the command that runs
    them under the counter.
    """
    http_port, grpc_port = process.free_ports(2)
    address = wire.Address(http_port, grpc_port)
    repository = mlp.write_repository(work / "repository", backend)
    argv = [
        f"--model-repository={repository}",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        "--allow-metrics=false",
        _PATIENCE,
        *flags,
    ]
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="nereid-"))
        servers = {}
        for child in plan_mesh(directory, argv).children:
            module = child.argv[child.argv.index("-m") + 1]
            name = _NAMES.get(module, module)
            command = process.Command(wrap(name, list(child.argv[1:])), work / f"{name}.log")
            servers[name] = stack.enter_context(process.ServerProcess(command))

        def require_alive() -> None:
            for server in servers.values():
                server.require_alive()

        wire.wait_ready(address, require_alive, mlp.NAME, _READY_S)
        yield CountedMesh(address, {name: server.pid for name, server in servers.items()})
