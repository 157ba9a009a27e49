"""Entry point ``python -m benchmarks.adopt``: what the proxy of `nereid adopt` costs.

CPU time of the proxy for each request, beside that of a gateway that reaches its scheduler over
TCP, as those on other machines do; and the latency that each adds to that of the mesh reached
directly. The same mesh stands behind both: for the proxy it is the old server, and gets the copies
as well, so that its latency has the copies' share of the processors. All are measured in turns.
"""

import argparse
import contextlib
import operator
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx.parser

from benchmarks import load, process, wire
from benchmarks.failure import BenchError
from benchmarks.models.workload import Workload
from benchmarks.peers import nereid

_MODEL = "double"
_GATEWAY, _PROXY, _DIRECT = "nereid_gateway", "nereid", "direct"
_PROTOCOLS = ("grpc", "http")
_WIDTH = 64
_GRAPH = f"""<ir_version: 8, opset_import: ["" : 17]>
    {_MODEL} (float[N, {_WIDTH}] X) => (float[N, {_WIDTH}] Y)
    <float factor = {{2}}> {{ Y = Mul(X, factor) }}"""
_CONFIG = """\
backend: "onnxruntime"
max_batch_size: 64
dynamic_batching { }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


class Figures(NamedTuple):
    """Figures of all rounds, in microseconds: CPU for each request, and median latencies."""

    cpu: list[float]
    latency: list[float]


def _write(repository: Path) -> Workload:
    (repository / _MODEL / "1").mkdir(parents=True)
    onnx.save(onnx.parser.parse_model(_GRAPH), repository / _MODEL / "1" / "model.onnx")
    (repository / _MODEL / "config.pbtxt").write_text(_CONFIG)
    x = np.full((1, _WIDTH), 2, np.float32)
    return Workload(
        name=_MODEL,
        served=_MODEL,
        inputs={"X": x},
        expected={"Y": 2 * x},
        write=lambda *_: None,
        graph=None,
        batched=_MODEL,
        max_batch_size=64,
    )


def _runner(
    protocol: str, address: wire.Address, work: Path, workload: Workload, given: argparse.Namespace
) -> Callable[[], load.Load]:
    if protocol == "http":
        http = load.HttpClient(address, work / "http.body", wire.http_body(workload))
        return lambda: http.run(given.concurrency, given.seconds)
    grpc = load.GrpcClient(address, work, wire.grpc_message(workload))
    rate = grpc.warm_up(given.concurrency, 1).infer_per_s
    return lambda: grpc.run(given.concurrency, max(1, int(rate * given.seconds)))


def _measure(given: argparse.Namespace, work: Path) -> dict[tuple[str, str], Figures]:
    """Return figures by process and protocol."""
    workload = _write(work / "models")
    ports = process.free_ports(8)
    mesh, gateway, proxy = (wire.Address(*ports[place : place + 2]) for place in (0, 2, 4))
    metrics, scheduler = ports[6], f"127.0.0.1:{ports[7]}"
    mesh_command = nereid.command(
        work / "models",
        work / "mesh.log",
        (mesh.http_port, mesh.grpc_port, metrics),
        [f"--scheduler-address={scheduler}"],
        given.tree,
    )
    program, environment, directory = (
        mesh_command.argv[0], mesh_command.environment, mesh_command.directory,
    )  # fmt: skip
    gateway_command = process.Command(
        [
            *(sys.executable, "-m", _GATEWAY, f"--scheduler-address={scheduler}"),
            *(f"--http-port={gateway.http_port}", f"--grpc-port={gateway.grpc_port}"),
            "--allow-metrics=false",
        ],
        work / "gateway.log",
        environment,
        directory,
    )
    url, grpc = f"127.0.0.1:{mesh.http_port}", f"127.0.0.1:{mesh.grpc_port}"
    proxy_command = process.Command(
        [
            *(program, "adopt", url, f"--grpc={grpc}", f"--to={url}", f"--to-grpc={grpc}"),
            *(f"--http-port={proxy.http_port}", f"--grpc-port={proxy.grpc_port}"),
            f"--control={work / 'adopt.sock'}",
        ],
        work / "proxy.log",
        environment,
        directory,
    )
    figures: dict[tuple[str, str], Figures] = defaultdict(lambda: Figures([], []))
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(process.ServerProcess(mesh_command))
        wire.wait_ready(mesh, started.require_alive, _MODEL)
        hops = {_DIRECT: (started, mesh)}
        for name, command, address in (
            (_GATEWAY, gateway_command, gateway),
            (_PROXY, proxy_command, proxy),
        ):
            server = stack.enter_context(process.ServerProcess(command))
            wire.wait_ready(address, server.require_alive, _MODEL)
            wire.verify_grpc(address, workload)
            hops[name] = server, address
        for _ in range(given.rounds):
            for protocol in _PROTOCOLS:
                for name, (server, address) in hops.items():
                    run = _runner(protocol, address, work, workload, given)
                    before = server.cpu_s()[name]
                    result = run()
                    used_s = server.cpu_s()[name] - before
                    figures[name, protocol].cpu.append(used_s / result.requests * 1e6)
                    figures[name, protocol].latency.append(result.p50_us)
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the medians and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adopt", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--tree", type=Path, help="a copy of the project to run instead")
    given = parser.parse_args(argv)
    try:
        load.require_clients(["grpc", "http"])
        with tempfile.TemporaryDirectory() as work:
            figures = _measure(given, Path(work))
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    for protocol in _PROTOCOLS:
        hops = [figures[name, protocol] for name in (_PROXY, _GATEWAY)]
        proxy, gateway = (statistics.median(hop.cpu) for hop in hops)
        print(
            f"{protocol}: proxy {proxy:.0f} us, gateway {gateway:.0f} us of CPU for each request, "
            f"ratio {proxy / gateway:.2f}"
        )
        # Both from one round, because the load of the machine changes.
        direct = figures[_DIRECT, protocol].latency
        proxy, gateway = (statistics.median(map(operator.sub, hop.latency, direct)) for hop in hops)
        print(
            f"{protocol}: proxy {proxy:.0f} us, gateway {gateway:.0f} us added to a median latency "
            f"of {statistics.median(direct):.0f} us"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
