"""Measures one cell at a time: warms up, loads, compares the client's and server's counts.

This module must not know how servers are started, or how figures are printed.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import load, streams, wire
from benchmarks.failure import BenchError
from benchmarks.figures.samples import Cell, Sample
from benchmarks.models.workload import Workload
from benchmarks.process import ServerProcess

# A gRPC frame header of 5 bytes stands before each message in the body of a response.
_GRPC_PREFIX_BYTES = 5


Client = load.GrpcClient | load.HttpClient | streams.StreamClient


@dataclass
class Peer:
    """A running server. After prepare(), it has a client for each protocol.

    counts: returns the server's statistics of the model. batches: returns the statistics of the
    model that is batched. In an ensemble, this model is a step. polls: the server uses CPU while it
    is idle, so it is paused while other servers are measured.
    """

    name: str
    server: ServerProcess
    address: wire.Address
    work: Path
    workload: Workload
    counts: Callable[[], wire.Counts]
    batches: Callable[[], wire.Counts]
    dialect: wire.Dialect = wire.Dialect.KSERVE
    polls: bool = False
    response_bytes: int = 0
    clients: dict[str, Client] = field(default_factory=dict)

    def prepare(self, protocols: Collection[str], *, client_calls: bool) -> None:
        """Wait for the model, check responses, and make the clients.

        client_calls: also check tritonclient's own calls, which use binary tensors over HTTP.
        """
        alive, workload = self.server.require_alive, self.workload
        wire.wait_ready(self.address, alive, workload.served, dialect=self.dialect)
        if client_calls and "stream" not in protocols:
            wire.verify_client_calls(self.address, workload)
        self.work.mkdir(parents=True, exist_ok=True)
        for protocol in protocols:
            self.clients[protocol] = self._client(protocol)

    def _client(self, protocol: str) -> Client:
        address, workload = self.address, self.workload
        if protocol == "grpc":
            self.response_bytes = wire.verify_grpc(address, workload)
            return load.GrpcClient(address, self.work, wire.grpc_message(workload))
        if protocol == "stream":
            self.response_bytes = wire.verify_stream(address, workload)
            message = wire.grpc_message(workload)
            return streams.StreamClient(address, message, workload.responses, self.response_bytes)
        if protocol == "json":
            wire.verify_json(address, workload, self.dialect)
            body = wire.json_body(workload, self.dialect)
        else:
            wire.verify_http(address, workload)
            body = wire.http_body(workload)
        return load.HttpClient(address, self.work / f"{protocol}.body", body)


def measure(peer: Peer, cell: Cell, seconds: float) -> Sample:
    """Return one sample of a cell."""
    try:
        return _measure(peer, cell, seconds)
    except (BenchError, OSError) as error:
        peer.server.require_alive()
        raise BenchError(
            f"{cell.model} {cell.peer} {cell.protocol} at concurrency {cell.concurrency}: {error}\n"
            f"the end of its log:\n{peer.server.log_tail()}"
        ) from error


def _measure(peer: Peer, cell: Cell, seconds: float) -> Sample:
    client = peer.clients[cell.protocol]
    warm_s = max(peer.workload.warm_s, seconds / 5)
    if isinstance(client, load.GrpcClient):
        rate = client.warm_up(cell.concurrency, warm_s).infer_per_s
    else:
        rate = client.run(cell.concurrency, warm_s).infer_per_s
    requests = max(cell.concurrency, round(rate * seconds))
    # Requests in flight when the warm-up was cut off may still execute, for once or twice the
    # latency.
    quiet_s = max(0.1, 2 * cell.concurrency / rate)
    counts_before = wire.settled_counts(peer.counts, quiet_s)
    batches_before = peer.batches()
    cpu_before = peer.server.cpu_s()
    if isinstance(client, load.GrpcClient):
        seen = client.run(cell.concurrency, requests)
    else:
        seen = client.run(cell.concurrency, seconds)
    cpu_after = peer.server.cpu_s()
    # After wrk hangs up, its requests in flight are cut off; the others have all their responses.
    cut_off = isinstance(client, load.HttpClient)
    counts_after = wire.settled_counts(peer.counts, quiet_s if cut_off else 0.1)
    batches_after = peer.batches()
    served = counts_after.success - counts_before.success
    failed = counts_after.fail - counts_before.fail
    require_counts(cell, seen.requests, served, failed)
    expected_bytes = seen.requests * (peer.response_bytes + _GRPC_PREFIX_BYTES)
    if cell.protocol == "grpc" and seen.data_bytes != expected_bytes:
        raise BenchError(f"{seen.data_bytes} bytes of responses, expected {expected_bytes}")
    executions = batches_after.executions - batches_before.executions
    return Sample(
        infer_per_s=seen.infer_per_s * peer.workload.responses,
        p50_us=seen.p50_us,
        p99_us=seen.p99_us,
        cpu_us=cpu_per_request_us(cpu_before, cpu_after, served),
        client_cpu_us=seen.client_cpu_s / seen.requests * 1e6,
        batch_size=served / executions if executions else 0.0,
        requests=seen.requests,
    )


def require_counts(cell: Cell, seen: int, served: int, failed: int) -> None:
    """Raise BenchError if the server has not served what the client counted.

    The check is needed because HTTP/2 clients do not see grpc-status. h2load sends a fixed number
    of requests, and streams end by themselves. wrk stops at a set time. Requests that are then in
    flight are served, or cancelled and counted as failed, by the server. wrk counts them neither
    way.
    """
    slack = cell.concurrency if cell.protocol in ("http", "json") else 0
    if not seen <= served + failed <= seen + slack or served < seen:
        raise BenchError(
            f"the client counted {seen} responses, the server {served} successes, {failed} failures"
        )


def cpu_per_request_us(
    before: Counter[str], after: Counter[str], requests: int
) -> dict[str, float]:
    """Return the CPU microseconds per request of each process, by name."""
    used = {name: (after[name] - before[name]) / requests * 1e6 for name in after}
    return {name: cpu_us for name, cpu_us in sorted(used.items()) if cpu_us >= 0.05}
