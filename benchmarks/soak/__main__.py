"""Entry point ``python -m benchmarks.soak``: a mixed load with connection churn, in pieces.

The benchmark reports the memory of each process after each piece of the load. It also reports the
growth of each process after the first tenth of the load, in KiB and per 100,000 requests. Growth in
the first tenth comes from caches that fill; each cache has a maximum size.
"""

import argparse
import asyncio
import json
import random
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import process
from benchmarks.failure import BenchError
from benchmarks.peers import nereid
from benchmarks.soak import grpc_load, http_load, models
from benchmarks.soak.memory import Memory, growth_of, memory_of

Client = Callable[[int, random.Random], Awaitable[int]]

_HTTP: dict[str, tuple[Client, int]] = {
    "http_json": (http_load.http_json, 6),
    "http_binary": (http_load.http_binary, 8),
    "http_one": (http_load.http_one, 30),
    "http_large": (http_load.http_large, 4),
    "http_text": (http_load.http_text, 4),
    "http_cached": (http_load.http_cached, 6),
    "http_script": (http_load.http_script, 4),
    "http_control": (http_load.http_control, 2),
    "http_errors": (http_load.http_errors, 4),
    "http_broken": (http_load.http_broken, 4),
    "http_aborted": (http_load.http_aborted, 6),
    "http_cancelled": (http_load.http_cancelled, 3),
    "http_idle": (http_load.http_idle, 6),
}
_GRPC: dict[str, tuple[Client, int]] = {
    "grpc_unary": (grpc_load.grpc_unary, 8),
    "grpc_one": (grpc_load.grpc_one, 12),
    "grpc_at_once": (grpc_load.grpc_at_once, 6),
    "grpc_large": (grpc_load.grpc_large, 3),
    "grpc_cached": (grpc_load.grpc_cached, 4),
    "grpc_stream": (grpc_load.grpc_stream, 4),
    "grpc_decoupled": (grpc_load.grpc_decoupled, 3),
    "grpc_errors": (grpc_load.grpc_errors, 4),
    "grpc_cancelled": (grpc_load.grpc_cancelled, 3),
    "grpc_aborted": (grpc_load.grpc_aborted, 6),
}
_ALL = _HTTP | _GRPC
# Cached responses have to reach their bound soon.
_FLAGS = ("--executors=1", "--cache-config=local,size=1000000")
_START_S = 90.0
# Pause after a piece: requests in flight end, and unused segments are given back.
_SETTLE_S = 1.0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--pieces", type=int, default=40, help="memory is read after each")
    parser.add_argument("--connections", type=int, default=8, help="at once")
    parser.add_argument(
        "--only", default=",".join(_ALL), help="kinds of clients, by commas: " + ", ".join(_ALL)
    )
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    arguments = parser.parse_args(argv)
    arguments.only = arguments.only.split(",")
    if unknown := set(arguments.only) - set(_ALL):
        parser.error(f"--only: no such clients: {', '.join(sorted(unknown))}")
    if arguments.pieces < 2 or arguments.requests < arguments.pieces:
        parser.error("--pieces: 2 or more, and at most --requests")
    return arguments


class Soak:
    """The load, and the number of requests that it has sent so far."""

    def __init__(self, only: Sequence[str], http_port: int, grpc_port: int) -> None:
        self._ports = {**dict.fromkeys(_HTTP, http_port), **dict.fromkeys(_GRPC, grpc_port)}
        self._names = list(only)
        self._weights = [_ALL[name][1] for name in only]
        self._rng = random.Random(7)
        self._target = 0
        self.sent: Counter[str] = Counter()
        self.connections = 0

    async def run(self, requests: int, connections: int) -> None:
        """Send this many more requests."""
        self._target = self.sent.total() + requests
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(self._run_clients())

    async def _run_clients(self) -> None:
        while self.sent.total() < self._target:
            (name,) = self._rng.choices(self._names, self._weights)
            try:
                sent = await _ALL[name][0](self._ports[name], self._rng)
            except Exception as error:
                raise BenchError(f"{name}: {type(error).__name__}: {error}") from error
            self.connections += 1
            # Connections without a request count as well: a load of these alone has to end, too.
            self.sent[name] += max(1, sent)


async def _wait_until_ready(server: process.ServerProcess, port: int) -> None:
    """Wait for the greeting.

    Connecting before the server listens could connect a socket to itself, whose port the server
    could not have then.
    """
    deadline = time.monotonic() + _START_S
    while f"localhost:{port}" not in server.log_tail(30):
        server.require_alive()
        if time.monotonic() > deadline:
            raise BenchError(f"not ready after {_START_S:g} s; its log:\n{server.log_tail()}")
        await asyncio.sleep(0.1)


def _samples(server: process.ServerProcess) -> dict[str, Memory]:
    """Return the memory by name and process id."""
    samples = {}
    for pid, name in server.processes().items():
        memory = memory_of(pid)
        if memory is not None:
            samples[f"{name} {pid}"] = memory
    return samples


async def _measure(arguments: argparse.Namespace, server: process.ServerProcess, ports: Any) -> Any:
    await _wait_until_ready(server, ports[0])
    soak = Soak(arguments.only, ports[0], ports[1])
    pieces: list[dict[str, Any]] = []
    started = time.monotonic()
    for number in range(arguments.pieces):
        await soak.run(arguments.requests // arguments.pieces, arguments.connections)
        await asyncio.sleep(_SETTLE_S)
        server.require_alive()
        memory = _samples(server)
        pieces.append(
            {
                "requests": soak.sent.total(),
                "connections": soak.connections,
                "seconds": round(time.monotonic() - started, 1),
                "memory": {name: asdict(used) for name, used in memory.items()},
            }
        )
        shown = ", ".join(f"{name} {used.anonymous}" for name, used in memory.items())
        done = f"{number + 1}/{arguments.pieces}: {soak.sent.total()} requests"
        print(f"{done}; anonymous KiB: {shown}", flush=True)
    return {"sent": dict(soak.sent), "growth": growth_of(pieces), "pieces": pieces}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak, and return the exit code."""
    arguments = _arguments(argv)
    process.interrupt_on_signals()
    try:
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            work = Path(name)
            repository = models.write_repository(work / "repository")
            first, second, third = process.free_ports(3)
            flags = [*_FLAGS, *arguments.nereid_flags]
            command = nereid.command(repository, work / "log", (first, second, third), flags)
            server = stack.enter_context(process.ServerProcess(command))
            report = asyncio.run(_measure(arguments, server, (first, second)))
    except (BenchError, ExceptionGroup, OSError) as error:
        errors = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        print("\n".join(f"soak: {error}" for error in errors), file=sys.stderr)
        return 1
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
    print(json.dumps({"sent": report["sent"], "growth": report["growth"]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
