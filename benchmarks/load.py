"""Makes load with h2load (gRPC) and wrk (HTTP), which need little CPU, and reads their figures.

Each client runs one thread and one fixed request. This module must not know which server it loads;
the server's own counts are checked elsewhere.
"""

import json
import os
import re
import resource
import shutil
import struct
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import wire
from benchmarks.failure import BenchError

# All but "json" have binary tensors; "stream" has one request on each ModelStreamInfer call.
PROTOCOLS = ("grpc", "http", "json", "stream")
_TOOLS = {"grpc": "h2load", "http": "wrk", "json": "wrk"}
_DEBIAN_PACKAGES = {"h2load": "nghttp2-client", "wrk": "wrk"}
_INFER_LUA = Path(__file__).with_name("infer.lua")
# Limit in seconds: h2load waits for ever for a response that never comes.
_MAX_S = 300
_UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


@dataclass(frozen=True)
class Load:
    """Figures that the client of one run reports."""

    requests: int
    duration_s: float
    p50_us: float
    p99_us: float
    client_cpu_s: float = 0.0
    data_bytes: int = 0

    @property
    def infer_per_s(self) -> float:
        """Successful inferences per second."""
        return self.requests / self.duration_s


def require_clients(protocols: Collection[str]) -> None:
    """Raise BenchError if a client program for one of the protocols is missing."""
    needed = {_TOOLS[protocol] for protocol in protocols if protocol in _TOOLS}
    tools = sorted(tool for tool in needed if shutil.which(tool) is None)
    if tools:
        packages = " ".join(_DEBIAN_PACKAGES[tool] for tool in tools)
        raise BenchError(f"not installed: {', '.join(tools)} (Debian: apt install {packages})")


def connections(concurrency: int) -> tuple[int, int]:
    """Return the number of connections, and of streams on each, for requests in flight."""
    for count in (8, 4):
        if concurrency % count == 0 and concurrency // count >= count // 2 + 2:
            return count, concurrency // count
    return 1, concurrency


class GrpcClient:
    """Client h2load, over HTTP/2 without TLS.

    h2load sends a fixed number of requests, so the counts of client and server must be equal.
    """

    def __init__(self, address: wire.Address, work: Path, message: bytes) -> None:
        self._url = f"http://127.0.0.1:{address.grpc_port}{wire.GRPC_PATH}"
        self._body = work / "grpc.body"
        self._log = work / "h2load.log"
        self._body.write_bytes(struct.pack(">BI", 0, len(message)) + message)

    def warm_up(self, concurrency: int, seconds: float) -> Load:
        """Load the server for some seconds."""
        # The flag -D takes whole seconds only; run() derives its count from the warm-up's rate.
        return self._h2load(concurrency, [f"-D{max(1, round(seconds))}"], logged=False)

    def run(self, concurrency: int, requests: int) -> Load:
        """Send requests, and return the figures with percentiles."""
        self._log.unlink(missing_ok=True)  # The client appends.
        arguments = [f"-n{requests}", f"--log-file={self._log}"]
        load = self._h2load(concurrency, arguments, logged=True)
        if load.requests != requests:
            raise BenchError(f"h2load: {load.requests} of {requests} requests got a response")
        return load

    def _h2load(self, concurrency: int, arguments: list[str], *, logged: bool) -> Load:
        clients, streams = connections(concurrency)
        argv = ["h2load", "-t1", f"-c{clients}", f"-m{streams}", *arguments, f"-d{self._body}"]
        argv += ["-Hcontent-type: application/grpc", "-Hte: trailers", self._url]
        output, cpu_s = _run(argv, {})
        return parse_h2load(output, self._log.read_text() if logged else "", cpu_s)


class HttpClient:
    """Client wrk, over HTTP/1.1 with keep-alive: one connection for each request in flight."""

    def __init__(self, address: wire.Address, path: Path, body: wire.HttpBody) -> None:
        """Prepare the client; it finds the body at ``path``."""
        self._url = f"http://127.0.0.1:{address.http_port}{body.path}"
        path.write_bytes(body.data)
        self._environment = {"BENCH_BODY": str(path)}
        if body.header_length is not None:
            self._environment["BENCH_HEADER_LENGTH"] = str(body.header_length)

    def run(self, concurrency: int, seconds: float) -> Load:
        """Load the server for some seconds."""
        return run_wrk(self._url, concurrency, seconds, self._environment)


def run_wrk(url: str, concurrency: int, seconds: float, environment: dict[str, str]) -> Load:
    """Load one address with wrk, and return the figures.

    environment: variables that infer.lua reads.
    """
    duration_s = max(1, round(seconds))  # The tool takes whole seconds only.
    argv = [
        "wrk",
        "-t1",
        f"-c{concurrency}",
        f"-d{duration_s}s",
        "--timeout=60s",
        "-s",
        str(_INFER_LUA),
        url,
    ]
    output, cpu_s = _run(argv, environment)
    return parse_wrk(output, cpu_s)


def _run(argv: list[str], environment: dict[str, str]) -> tuple[str, float]:
    """Run a client, and return its output and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The client has a session of its own: Ctrl-C reaches the benchmark alone, which then ends it.
    child = subprocess.Popen(
        argv,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=_MAX_S)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{argv[0]} had not ended after {_MAX_S} s: no responses?") from error
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if child.returncode != 0:
        raise BenchError(f"{argv[0]} ended with exit code {child.returncode}: {output[-500:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return output, cpu_s


def parse_h2load(output: str, log: str, client_cpu_s: float = 0.0) -> Load:
    """Parse h2load's summary.

    h2load prints no percentiles, so p50 and p99 come from its log of requests.
    """
    finished = re.search(r"^finished in ([\d.]+)(us|ms|s),", output, re.MULTILINE)
    counts = re.search(
        r"(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", output
    )
    data = re.search(r"\((\d+)\) data$", output, re.MULTILINE)
    if finished is None or counts is None or data is None:
        raise BenchError(f"h2load's output is not understood: {output[-500:]}")
    done, succeeded, failed, errored, timed_out = map(int, counts.groups())
    if done == 0 or failed or errored or timed_out or succeeded != done:
        raise BenchError(f"h2load: {counts.group(0)}")
    p50, p99 = _percentiles_us(log)
    return Load(
        requests=done,
        duration_s=float(finished.group(1)) * _UNITS_S[finished.group(2)],
        p50_us=p50,
        p99_us=p99,
        client_cpu_s=client_cpu_s,
        data_bytes=int(data.group(1)),
    )


def _percentiles_us(log: str) -> tuple[float, float]:
    """Return p50 and p99 of a log.

    Its columns are start, HTTP status, microseconds until the end.
    """
    times_us = [int(line.split("\t")[2]) for line in log.splitlines()]
    if not times_us:
        return 0.0, 0.0
    p50, p99 = np.percentile(times_us, [50, 99])
    return float(p50), float(p99)


def parse_wrk(output: str, client_cpu_s: float = 0.0) -> Load:
    """Parse the line of JSON that infer.lua prints at the end."""
    line = next((line for line in output.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        raise BenchError(f"wrk's output is not understood: {output[-500:]}")
    result = json.loads(line.removeprefix("RESULT "))
    errors = {kind: count for kind, count in result["errors"].items() if count}
    if errors or result["requests"] == 0:
        raise BenchError(f"wrk: {result['requests']} requests, errors {errors}")
    return Load(
        requests=result["requests"],
        duration_s=result["duration_us"] / 1e6,
        p50_us=float(result["p50_us"]),
        p99_us=float(result["p99_us"]),
        client_cpu_s=client_cpu_s,
    )
