"""Entry point ``python -m benchmarks.cache``: measures the cost of a response cache hit.

The cost is compared with that of a run of MiniLM in the same mesh. It is also measured for each
process, with one gateway and with two. The flags, and the ways to start, load and watch servers,
are those of benchmarks.__main__.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import load, process, wire
from benchmarks.failure import BenchError
from benchmarks.figures.samples import Sample, middle
from benchmarks.measure import cpu_per_request_us
from benchmarks.models import minilm
from benchmarks.peers import environment, nereid

STORES = ("local", "redis")
# More requests than are in flight at once, so that no two of those are equal and share a lookup.
_KNOWN = 512
# Requests per second of load, more than MiniLM manages.
_UNKNOWN_PER_S = 1000
_MODELS = environment.CACHE / "models"
# A slow lookup has to show in the figures, and must not become a run.
_FLAGS = ("--executors=1", "--cache-timeout-ms=5000")


@dataclass
class Mesh:
    """A running mesh, whose model has a cache, with its processes and the ports of its gateways."""

    repository: Path
    work: Path
    servers: list[process.ServerProcess] = field(default_factory=list)
    gateways: list[wire.Address] = field(default_factory=list)
    # Number of used requests that must never be sent again.
    used: int = 0

    def require_alive(self) -> None:
        """Raise BenchError if a process has ended."""
        for server in self.servers:
            server.require_alive()

    def cpu_s(self) -> Counter[str]:
        """Return the CPU seconds of each process by name; all gateways count as one."""
        return sum((server.cpu_s() for server in self.servers), Counter())

    def counts(self) -> wire.Counts:
        """Return the model's statistics."""
        return wire.settled_counts(partial(wire.counts, self.gateways[0], minilm.NAME))

    def load(self, first: int, number: int, concurrency: int, seconds: float) -> list[load.Load]:
        """Load each gateway at once with the same number of different requests."""
        bodies = minilm.bodies(self.repository, first, number)
        path = self.work / "bodies"
        path.write_bytes(bodies.data)
        environment = {
            "BENCH_BODY": str(path),
            "BENCH_BODY_BYTES": str(bodies.each_bytes),
            "BENCH_HEADER_LENGTH": str(bodies.header_length),
        }
        urls = [
            f"http://127.0.0.1:{gateway.http_port}{minilm.HTTP_PATH}" for gateway in self.gateways
        ]
        with ThreadPoolExecutor(len(urls)) as pool:
            runs = [
                pool.submit(load.run_wrk, url, concurrency, seconds, environment) for url in urls
            ]
            return [run.result() for run in runs]

    def learn(self) -> None:
        """Send the known requests until all of them are cache hits."""
        give_up = 10
        while True:
            before = self.counts()
            self.load(0, _KNOWN, 8, 1)
            if self.counts().executions == before.executions:
                return
            give_up -= 1
            self.require_alive()
            if not give_up:
                raise BenchError(f"not all hits yet; the log:\n{self.servers[-1].log_tail()}")

    def measure(self, *, hits: bool, concurrency: int, seconds: float) -> Sample:
        """Return a sample of hits or of misses."""
        if hits:
            first, number = 0, _KNOWN
        else:
            number = int(seconds * _UNKNOWN_PER_S)
            first = _KNOWN + self.used
            self.used += number
        before, cpu_before = self.counts(), self.cpu_s()
        seen = self.load(first, number, concurrency, seconds)
        after, cpu_after = self.counts(), self.cpu_s()
        self.require_alive()
        served = after.success - before.success
        found = after.cache_hits - before.cache_hits
        if found != (served if hits else 0):
            raise BenchError(f"{found} hits in {served} requests, where all or none were due")
        if served < sum(gateway_load.requests for gateway_load in seen):
            raise BenchError(f"the clients saw more than the {served} responses of the server")
        executions = after.executions - before.executions
        return Sample(
            infer_per_s=sum(gateway_load.infer_per_s for gateway_load in seen),
            p50_us=max(gateway_load.p50_us for gateway_load in seen),
            p99_us=max(gateway_load.p99_us for gateway_load in seen),
            cpu_us=cpu_per_request_us(cpu_before, cpu_after, served),
            client_cpu_us=sum(gateway_load.client_cpu_s for gateway_load in seen) / served * 1e6,
            batch_size=served / executions if executions else 0.0,
            requests=served,
        )


def start(stack: ExitStack, work: Path, models: Path, store: str, gateways: int) -> Mesh:
    """Start a mesh; with 0 gateways, gateway, scheduler and cache share a process."""
    work.mkdir(parents=True, exist_ok=True)
    mesh = Mesh(minilm.write_repository(work / "repository", models), work)

    def run(command: process.Command) -> None:
        mesh.servers.append(stack.enter_context(process.ServerProcess(command)))

    if store == "redis":
        socket = work / "redis.sock"
        options = ["--save", "", "--appendonly", "no", "--port", "0", "--unixsocket", str(socket)]
        run(process.Command(["redis-server", *options], work / "redis.log"))
        config = f"redis,url=unix://{socket}"
    else:
        config = "local,size=268435456"
    scheduler, *ports = process.free_ports(1 + 3 * max(1, gateways))
    join = "none" if gateways else "scheduler"
    flags = [*_FLAGS, f"--cache-config={config}", f"--join={join}"]
    flags.append(f"--scheduler-address=127.0.0.1:{scheduler}")
    first, second, third = ports[:3]
    log = work / "nereid.log"
    run(nereid.command(mesh.repository, log, (first, second, third), flags))
    mesh.gateways.append(wire.Address(first, second))
    for index in range(3, len(ports), 3):
        http_port, grpc_port, metrics_port = ports[index : index + 3]
        argv = [sys.executable, "-m", "nereid_gateway", f"--http-port={http_port}"]
        argv += [f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}"]
        argv.append(f"--scheduler-address=127.0.0.1:{scheduler}")
        run(process.Command(argv, work / f"gateway-{index}.log"))
        mesh.gateways.append(wire.Address(http_port, grpc_port))
    for address in mesh.gateways:
        wire.wait_ready(address, mesh.require_alive, minilm.NAME)
    mesh.learn()
    return mesh


def _line(label: str, samples: Sequence[Sample]) -> str:
    mid = middle(samples)
    rates = [sample.infer_per_s for sample in samples]
    cpu = "  ".join(f"{name.removeprefix('nereid_')} {us:.1f}" for name, us in mid.cpu_us.items())
    return (
        f"{label:34}{mid.infer_per_s:9,.0f}{min(rates):9,.0f}{max(rates):9,.0f}{mid.p50_us:9,.0f}"
        f"{mid.client_cpu_us:8.1f}  {sum(mid.cpu_us.values()):.1f} = {cpu}"
    )


def beside_runs(mesh: Mesh, store: str, arguments: argparse.Namespace) -> None:
    """Measure cache hits and runs of the model, in turns."""
    for concurrency in arguments.concurrency:
        runs: list[Sample] = []
        hits: list[Sample] = []
        for _ in range(arguments.rounds):
            for samples, hit in ((runs, False), (hits, True)):
                seconds = arguments.seconds
                samples.append(mesh.measure(hits=hit, concurrency=concurrency, seconds=seconds))
        print(_line(f"{store} joined c={concurrency} run", runs))
        print(_line(f"{store} joined c={concurrency} hit", hits))
        run, hit_mid = middle(runs), middle(hits)
        cpu = sum(hit_mid.cpu_us.values()) / sum(run.cpu_us.values())
        latency = hit_mid.p50_us / run.p50_us
        outcome = "met" if cpu < 0.1 else "MISSED"
        print(f"  hit / run: CPU {cpu:.3f}, p50 {latency:.3f}; CPU < 0.1 {outcome}", flush=True)


def by_process(mesh: Mesh, store: str, arguments: argparse.Namespace) -> None:
    """Measure each process's cost of a hit: it shows how many gateways one scheduler feeds."""
    number = len(mesh.gateways)
    for concurrency in arguments.concurrency:
        seconds = arguments.seconds
        samples = [
            mesh.measure(hits=True, concurrency=concurrency, seconds=seconds)
            for _ in range(arguments.rounds)
        ]
        print(_line(f"{store} {number} gateway(s) c={concurrency} each, hit", samples))
        cpu_us = middle(samples).cpu_us
        gateway_us = cpu_us["nereid_gateway"]
        feeds = [
            f"one {name} keeps up with {gateway_us / cpu_us[f'nereid_{name}']:.1f} gateways"
            for name in ("scheduler", "cache")
        ]
        print(f"  {'; '.join(feeds)}", flush=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cache", description="What a hit of the response cache costs"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of load in each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", action="append", choices=STORES)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--models", type=Path, default=_MODELS, help="where MiniLM is, or is made")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1 or arguments.seconds < 1 or min(arguments.concurrency) < 1:
        parser.error("--rounds, --seconds and --concurrency must be at least 1")
    return arguments


def _run(arguments: argparse.Namespace, work: Path) -> None:
    load.require_clients(("http",))
    stores = list(arguments.store or STORES)
    if "redis" in stores and shutil.which("redis-server") is None:
        print("note: no redis-server here: the memory store alone")
        stores.remove("redis")
    busy = os.getloadavg()[0]
    print(f"load_at_start={busy:.2f} cores={len(os.sched_getaffinity(0))}")
    if busy > 0.5:
        print("note: the machine is not idle")
    columns = "".join(f"{name:>9}" for name in ("infer/s", "lowest", "highest", "p50 us"))
    print(f"{'':34}{columns}{'client':>8}  CPU us per request", flush=True)
    for store in stores:
        for gateways in (0, 1, 2):
            with ExitStack() as stack:
                folder = work / f"{store}-{gateways}"
                mesh = start(stack, folder, arguments.models, store, gateways)
                (by_process if gateways else beside_runs)(mesh, store, arguments)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    arguments = _arguments(argv)
    process.interrupt_on_signals()
    with tempfile.TemporaryDirectory(prefix="nereid-bench-") as work:
        try:
            _run(arguments, Path(work))
        except BenchError as error:
            print(f"benchmarks.cache: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("benchmarks.cache: interrupted, the servers are stopped", file=sys.stderr)
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
