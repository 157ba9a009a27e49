"""Entry point ``python -m benchmarks.adopt``: what the proxy of `nereid adopt` costs.

There are three lines for each protocol and each number of requests in flight. The first has the CPU
time of each request, the second what is added to the median latency of the mesh reached directly:

- by the proxy, as it is started;
- by the proxy alone, with `--copies=0`: this latency is what a client waits for;
- by a gateway that reaches its scheduler over TCP, as those on other machines do.

The same mesh stands behind all of them: for the proxy it is the old server, and gets the copies as
well, so that its latency has the copies' share of the processors. With one request in flight there
is least of that. All are measured in turns.

The third line has the CPU time of the hop and the mesh together, which the added latency follows
once all processors are busy, and the size of batches. A gateway parses requests in the mesh's
place, and batches behind it are larger; a proxy leaves the mesh all of its work.
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
_GATEWAY, _PROXY, _ALONE, _DIRECT = "gateway", "proxy", "proxy alone", "direct"
# Names of the processes whose CPU time counts.
_PROCESSES = {_GATEWAY: "nereid_gateway", _PROXY: "nereid", _ALONE: "nereid", _DIRECT: ""}
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
    """Figures of all rounds: microseconds of CPU for each request, and of median latencies.

    total_cpu: of the hop and the mesh together. batch_sizes: requests of each execution.
    """

    cpu: list[float]
    latency: list[float]
    total_cpu: list[float]
    batch_sizes: list[float]


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
    kind: tuple[str, int], address: wire.Address, work: Path, workload: Workload, seconds: float
) -> Callable[[], load.Load]:
    protocol, concurrency = kind
    if protocol == "http":
        http = load.HttpClient(address, work / "http.body", wire.http_body(workload))
        return lambda: http.run(concurrency, seconds)
    grpc = load.GrpcClient(address, work, wire.grpc_message(workload))
    rate = grpc.warm_up(concurrency, 1).infer_per_s
    return lambda: grpc.run(concurrency, max(1, int(rate * seconds)))


def _measure(
    given: argparse.Namespace, kinds: Sequence[tuple[str, int]], work: Path
) -> dict[tuple[str, tuple[str, int]], Figures]:
    """Return figures by hop and by kind of load: protocol and number in flight."""
    workload = _write(work / "models")
    ports = process.free_ports(10)
    mesh, gateway, proxy, alone = (wire.Address(*ports[at : at + 2]) for at in (0, 2, 4, 6))
    metrics, scheduler = ports[8], f"127.0.0.1:{ports[9]}"
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
            *(sys.executable, "-m", _PROCESSES[_GATEWAY], f"--scheduler-address={scheduler}"),
            *(f"--http-port={gateway.http_port}", f"--grpc-port={gateway.grpc_port}"),
            "--allow-metrics=false",
        ],
        work / "gateway.log",
        environment,
        directory,
    )
    url, grpc = f"127.0.0.1:{mesh.http_port}", f"127.0.0.1:{mesh.grpc_port}"

    def proxy_command(at: wire.Address, *flags: str) -> process.Command:
        return process.Command(
            [
                *(program, "adopt", url, f"--grpc={grpc}", f"--to={url}", f"--to-grpc={grpc}"),
                *(f"--http-port={at.http_port}", f"--grpc-port={at.grpc_port}", *flags),
                f"--control={work / f'{at.http_port}.sock'}",
            ],
            work / f"{at.http_port}.log",
            environment,
            directory,
        )

    figures: dict[tuple[str, tuple[str, int]], Figures] = defaultdict(
        lambda: Figures([], [], [], [])
    )
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(process.ServerProcess(mesh_command))
        wire.wait_ready(mesh, started.require_alive, _MODEL)
        hops = {_DIRECT: (started, mesh)}
        for name, command, address in (
            (_GATEWAY, gateway_command, gateway),
            (_PROXY, proxy_command(proxy), proxy),
            (_ALONE, proxy_command(alone, "--copies=0"), alone),
        ):
            server = stack.enter_context(process.ServerProcess(command))
            wire.wait_ready(address, server.require_alive, _MODEL)
            wire.verify_grpc(address, workload)
            hops[name] = server, address
        for _ in range(given.rounds):
            for kind in kinds:
                for name, (server, address) in hops.items():
                    run = _runner(kind, address, work, workload, given.seconds)
                    servers = {started, server}
                    counts_before = wire.counts(mesh, _MODEL)
                    before = server.cpu_s()[_PROCESSES[name]]
                    total_before = sum(map(process.ServerProcess.total_cpu_s, servers))
                    result = run()
                    used_s = server.cpu_s()[_PROCESSES[name]] - before
                    total_s = sum(map(process.ServerProcess.total_cpu_s, servers)) - total_before
                    counts = wire.counts(mesh, _MODEL)
                    executions = counts.executions - counts_before.executions
                    found = figures[name, kind]
                    found.cpu.append(used_s / result.requests * 1e6)
                    found.latency.append(result.p50_us)
                    found.total_cpu.append(total_s / result.requests * 1e6)
                    found.batch_sizes.append((counts.success - counts_before.success) / executions)
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the medians and their ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adopt", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tree", type=Path, help="a copy of the project to run instead")
    given = parser.parse_args(argv)
    kinds = [(protocol, number) for protocol in _PROTOCOLS for number in given.concurrency]
    try:
        load.require_clients(["grpc", "http"])
        with tempfile.TemporaryDirectory() as work:
            figures = _measure(given, kinds, Path(work))
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    for kind in kinds:
        title = f"{kind[0]}, {kind[1]} in flight"
        names = (_PROXY, _ALONE, _GATEWAY)
        proxy, alone, gateway = (statistics.median(figures[name, kind].cpu) for name in names)
        print(
            f"{title}: proxy {proxy:.1f} us, proxy alone {alone:.1f} us, gateway {gateway:.1f} us "
            f"of CPU for each request, ratios {proxy / gateway:.2f}, {alone / gateway:.2f}"
        )
        # All from one round, because the load of the machine changes.
        direct = figures[_DIRECT, kind].latency
        proxy, alone, gateway = (
            statistics.median(map(operator.sub, figures[name, kind].latency, direct))
            for name in names
        )
        print(
            f"{title}: proxy {proxy:.0f} us, proxy alone {alone:.0f} us, gateway {gateway:.0f} us "
            f"added to a median latency of {statistics.median(direct):.0f} us"
        )
        hops = (_ALONE, _GATEWAY, _DIRECT)
        total = ", ".join(
            f"{name} {statistics.median(figures[name, kind].total_cpu):.1f} us" for name in hops
        )
        sizes = ", ".join(
            f"{name} {statistics.median(figures[name, kind].batch_sizes):.1f}" for name in hops
        )
        print(
            f"{title}: {total} of CPU of all servers for each request; "
            f"requests of an execution: {sizes}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
