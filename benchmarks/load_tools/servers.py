"""Servers for both tools: a mock with a set response time, and real ones with a perceptron.

Real servers have the perceptron twice: with and without sequences.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks import wire
from benchmarks.failure import BenchError
from benchmarks.load_tools.settings import Setting, Target
from benchmarks.load_tools.tools import nereid_command
from benchmarks.models import mlp
from benchmarks.models.workload import Workload
from benchmarks.peers import mlserver, native, nereid
from benchmarks.peers.start import Options, install, start
from benchmarks.process import ServerProcess, free_ports
from nereid_perf.endpoint import Endpoint
from nereid_perf.server import Server, ServerError

MOCK = "mock"
OURS = "nereid"
NAMES = (MOCK, OURS, native.NAME, "mlserver")
_SEQUENCES = f"{mlp.NAME}_sequences"
_READY_S = 60.0
# Time of a mock request for each request in flight: two cores are enough for any tool then.
_MIN_MS = 5.0
_MS_IN_FLIGHT = 1.0


def delay_ms(setting: Setting) -> float:
    """Return the time that the mock server takes for a request."""
    return max(_MIN_MS, setting.in_flight * _MS_IN_FLIGHT)


@contextmanager
def mock(setting: Setting, tree: Path, work: Path) -> Iterator[Target]:
    """Run a mock server until the context ends."""
    http_port, grpc_port = free_ports(2)
    argv = [
        *("perf", "mock", "--http-port", str(http_port), "--grpc-port", str(grpc_port)),
        *("--delay-ms", f"{delay_ms(setting):g}"),
        *(["--sequences"] if setting.has_sequences else []),
    ]
    with ServerProcess(nereid_command(tree, argv, work / "mock.log")) as server:
        target = Target(
            MOCK, f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}", mlp.NAME, mlp.NAME
        )
        _await(target, server)
        yield target


@contextmanager
def real(name: str, tree: Path, work: Path, models: Path) -> Iterator[Target]:
    """Run a real server until the context ends.

    Raises:
        BenchError: it cannot be started here.
    """
    options = Options(variants={OURS: nereid.Variant(("--allow-client-shm=true",), tree)})
    install([name], options)
    made = mlp.workload(models)

    def write(repository: Path, backend: str) -> None:
        made.write(repository, backend)
        _write_sequences(repository, made)

    with ExitStack() as stack:
        peer = start(name, options, replace(made, write=write), work, stack)
        is_mlserver = name == mlserver.VENV.name
        target = Target(
            name,
            f"127.0.0.1:{peer.address.http_port}",
            f"127.0.0.1:{peer.address.grpc_port}",
            mlp.NAME,
            _SEQUENCES,
            is_json=is_mlserver,
            shape=f"{mlp.INPUT}:FP32:1,{mlp.WIDTHS[0]}" if is_mlserver else "",
        )
        for model in (mlp.NAME,) if is_mlserver else (mlp.NAME, _SEQUENCES):
            wire.wait_ready(peer.address, peer.server.require_alive, model)
        yield target


def counter(target: Target, setting: Setting) -> Callable[[], int | None]:
    """Return a function that returns how many requests the server has served."""
    server = Server(Endpoint("http", target.http))
    model = target.sequence_model if setting.has_sequences else target.model

    def count() -> int | None:
        try:
            entries = server.statistics(model)
        except ServerError:
            return None
        if entries is None:
            return None
        return sum(int(entry["inference_stats"]["success"].get("count", 0)) for entry in entries)

    return count


def _await(target: Target, server: ServerProcess) -> None:
    asked = Server(Endpoint("http", target.http))
    give_up = time.monotonic() + _READY_S
    while True:
        server.require_alive()
        try:
            asked.metadata(target.model)
        except ServerError as error:
            if time.monotonic() > give_up:
                raise BenchError(f"{target.name} is not ready: {error}") from error
            time.sleep(0.1)
        else:
            return


def _write_sequences(repository: Path, made: Workload) -> None:
    version = repository / _SEQUENCES / "1"
    version.mkdir(parents=True, exist_ok=True)
    assert made.graph is not None, "the perceptron has one"
    (version / "model.onnx").write_bytes(made.graph.read_bytes())
    config = (repository / mlp.NAME / "config.pbtxt").read_text()
    batching = "sequence_batching { oldest { max_candidate_sequences: 64 } }"
    text = config.replace(f'name: "{mlp.NAME}"', f'name: "{_SEQUENCES}"', 1)
    (repository / _SEQUENCES / "config.pbtxt").write_text(
        text.replace("dynamic_batching { }", batching)
    )
