"""One cell at a time: warm up, load, and hold the client's count against the server's own.

A cell is one peer, protocol and concurrency; a sample is one round's figures of a cell. Must not
know how servers are started, nor how figures are printed.
"""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import load, wire
from benchmarks.failure import BenchError
from benchmarks.process import ServerProcess

# 5 bytes of gRPC frame header stand before each message in the body of a response
_GRPC_PREFIX_BYTES = 5


@dataclass(frozen=True)
class Cell:
    peer: str
    protocol: str
    concurrency: int


@dataclass(frozen=True)
class Sample:
    """One round's figures of a cell; CPU is per request, by process name."""

    infer_per_s: float
    p50_us: float
    p99_us: float
    cpu_us: dict[str, float]
    client_cpu_us: float = 0.0
    batch_size: float = 0.0
    requests: int = 0


@dataclass
class Peer:
    """A running server, verified, with a client for each protocol."""

    name: str
    server: ServerProcess
    address: wire.Address
    work: Path
    response_bytes: int = 0
    clients: dict[str, load.GrpcClient | load.HttpClient] = field(default_factory=dict)

    def prepare(self, protocols: tuple[str, ...]) -> None:
        wire.wait_ready(self.address, self.server.require_alive)
        self.response_bytes = wire.verify(self.address)
        self.work.mkdir(parents=True, exist_ok=True)
        if "grpc" in protocols:
            self.clients["grpc"] = load.GrpcClient(self.address, self.work)
        if "http" in protocols:
            self.clients["http"] = load.HttpClient(self.address, self.work)


def measure(peer: Peer, cell: Cell, seconds: float) -> Sample:
    try:
        return _measure(peer, cell, seconds)
    except (BenchError, OSError) as error:
        peer.server.require_alive()
        raise BenchError(
            f"{cell.peer} {cell.protocol} at concurrency {cell.concurrency}: {error}\n"
            f"the end of its log:\n{peer.server.log_tail()}"
        ) from error


def _measure(peer: Peer, cell: Cell, seconds: float) -> Sample:
    client = peer.clients[cell.protocol]
    warm_s = max(1.0, seconds / 5)
    requests = 0
    if isinstance(client, load.GrpcClient):
        rate = client.warm_up(cell.concurrency, warm_s).infer_per_s
        requests = max(cell.concurrency, round(rate * seconds))
    else:
        client.run(cell.concurrency, warm_s)
    counts_before = wire.settled_counts(peer.address)
    cpu_before = peer.server.cpu_s()
    if isinstance(client, load.GrpcClient):
        seen = client.run(cell.concurrency, requests)
    else:
        seen = client.run(cell.concurrency, seconds)
    cpu_after = peer.server.cpu_s()
    counts_after = wire.settled_counts(peer.address)
    served = counts_after.success - counts_before.success
    failed = counts_after.fail - counts_before.fail
    require_counts(cell, seen.requests, served, failed)
    expected_bytes = seen.requests * (peer.response_bytes + _GRPC_PREFIX_BYTES)
    if cell.protocol == "grpc" and seen.data_bytes != expected_bytes:
        raise BenchError(f"{seen.data_bytes} bytes of responses, expected {expected_bytes}")
    executions = counts_after.executions - counts_before.executions
    return Sample(
        infer_per_s=seen.infer_per_s,
        p50_us=seen.p50_us,
        p99_us=seen.p99_us,
        cpu_us=cpu_per_request_us(cpu_before, cpu_after, served),
        client_cpu_us=seen.client_cpu_s / seen.requests * 1e6,
        batch_size=served / executions if executions else 0.0,
        requests=seen.requests,
    )


def require_counts(cell: Cell, seen: int, served: int, failed: int) -> None:
    """The server must have served what the client counted: HTTP/2 clients see no grpc-status.

    h2load sends a fixed number. wrk stops by the clock: the requests then in flight are served,
    or cancelled and counted as failed, and the client counts them neither way.
    """
    slack = cell.concurrency if cell.protocol == "http" else 0
    if not seen <= served + failed <= seen + slack or served < seen:
        raise BenchError(
            f"the client counted {seen} responses, the server {served} successes, {failed} failures"
        )


def cpu_per_request_us(
    before: Counter[str], after: Counter[str], requests: int
) -> dict[str, float]:
    used = {name: (after[name] - before[name]) / requests * 1e6 for name in after}
    return {name: cpu_us for name, cpu_us in sorted(used.items()) if cpu_us >= 0.05}


def measure_bare(model_path: Path, batch_size: int, seconds: float) -> Sample:
    argv = [sys.executable, "-m", "benchmarks.bare", str(model_path), str(batch_size)]
    ran = subprocess.run(
        [*argv, str(seconds)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    if ran.returncode != 0:
        raise BenchError(f"the bare loop failed: {ran.stderr[-500:]}")
    result = json.loads(ran.stdout)
    return Sample(
        infer_per_s=result["infer_per_s"],
        p50_us=result["p50_us"],
        p99_us=result["p99_us"],
        cpu_us={"bare": result["cpu_us"]},
        batch_size=float(batch_size),
        requests=result["requests"],
    )
