"""Entry point ``python -m benchmarks.shadows``: what a shadow costs the requests that it copies.

Each round measures the same load without a shadow, without one again (A/A), and with each kind of
shadow, in another order. The load is an open loop. Ratios are those to the round's first figures;
the intervals are bootstrapped over the rounds. A kind is in the noise if its interval and that of
A/A overlap.
"""

import argparse
import asyncio
import json
import math
import random
import shlex
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, quantiles

from benchmarks import process, wire
from benchmarks.failure import BenchError
from benchmarks.models import mlp
from benchmarks.peers import nereid
from benchmarks.soak.memory import memory_of
from nereid.rpc import RpcError, SocketChannel

_FIRST, _AGAIN = "none", "none again"
_MODES = ("equal", "wrong", "hang", "crash", "leak", "slow", "busy")
_SHADOW, _EQUAL = "shadow", "equal"
_CONNECTIONS = 8
# Copies are compared, and the shadow's worker is started again, after the load.
_SETTLE_S = 0.5
# The first crashes and the starts after them, between which copies pause for longer each time.
_CRASHES_S = 8.0
_DEADLINE_S = 30.0
_RESAMPLES = 2000
_COLUMNS = (
    "shadow",
    "p50 us",
    "p99 us",
    "CPU us/request",
    "p50 x none",
    "p99 x none",
    "CPU x none",
    "failed",
    "RSS MiB",
    "p99 in the noise",
)
_SCRIPT = """\
import os
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

MODE = Path(__file__).parent / "mode"
LEAKED = []


class TritonPythonModel:
    def execute(self, requests):
        mode = MODE.read_text()
        while mode == "hang":
            time.sleep(0.05)
            mode = MODE.read_text()
        if mode == "crash":
            os._exit(7)
        if mode == "leak":
            LEAKED.append(np.ones(1 << 14))
        if mode == "slow":
            # About a thousand times the execution of the model.
            time.sleep(0.2)
        ends = time.monotonic() + (0.2 if mode == "busy" else 0)
        while time.monotonic() < ends:
            pass
        rows = (pb_utils.get_input_tensor_by_name(each, "INPUT").as_numpy() for each in requests)
        outputs = [np.zeros((len(each), 10), np.float32) for each in rows]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", output)]) for output in outputs
        ]
"""


@dataclass(frozen=True)
class Figures:
    """Figures of one load. cpu_us: per request, without the shadow's worker."""

    p50_us: float
    p99_us: float
    cpu_us: float
    failed: int
    rss_mib: float


def _write(root: Path) -> Path:
    """Write the models; return the file with the shadow's mode."""
    mlp.write_repository(root, "onnxruntime")
    equal = root / _EQUAL
    shutil.copytree(root / mlp.NAME, equal)
    folder = root / _SHADOW / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(_SCRIPT)
    (folder / "mode").write_text("")
    config = (equal / "config.pbtxt").read_text().replace(f'name: "{mlp.NAME}"', "")
    (equal / "config.pbtxt").write_text(config)
    (root / _SHADOW / "config.pbtxt").write_text(config.replace("onnxruntime", "python"))
    return folder / "mode"


class _Mesh:
    def __init__(self, server: process.ServerProcess, address: wire.Address, mode: Path) -> None:
        self._server = server
        self._address = address
        self._mode = mode
        self._channels = [
            SocketChannel(f"127.0.0.1:{address.grpc_port}") for _ in range(_CONNECTIONS)
        ]
        self._message = wire.grpc_message(mlp.workload(mode.parent))

    async def measure(self, kind: str, rate: float, seconds: float) -> Figures:
        """Return the figures of a load while a kind of shadow gets copies of all requests."""
        await asyncio.to_thread(self._set_shadow, kind)
        await self._offer(rate, _CRASHES_S if kind == "crash" else _SETTLE_S)
        before = self._server.cpu_s()
        latencies_s, failed = await self._offer(rate, seconds)
        used = self._server.cpu_s()
        used.subtract(before)
        cpu_s = sum(value for name, value in used.items() if not _is_worker(name) and value > 0)
        p50_s, p99_s = _p50_p99(latencies_s)
        cpu_us = 1e6 * cpu_s / len(latencies_s)
        figures = Figures(1e6 * p50_s, 1e6 * p99_s, cpu_us, failed, self._rss_mib())
        await asyncio.to_thread(self._set_shadow, _FIRST)
        await asyncio.sleep(_SETTLE_S)
        self._server.require_alive()
        return figures

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            await channel.close()

    def _set_shadow(self, kind: str) -> None:
        is_none = kind in {_FIRST, _AGAIN}
        self._mode.write_text("" if is_none else kind)
        target = _EQUAL if kind == _EQUAL else _SHADOW
        body = None if is_none else json.dumps({"to": f"model:{target}", "timeout_s": 2}).encode()
        url = f"http://127.0.0.1:{self._address.http_port}/v2/repository/models/{mlp.NAME}/shadow"
        method = "DELETE" if is_none else "POST"
        with urllib.request.urlopen(urllib.request.Request(url, body, method=method)):
            pass

    async def _offer(self, rate: float, seconds: float) -> tuple[list[float], int]:
        """Send requests at random times. Return the latencies in s, and the number of failures."""
        latencies_s: list[float] = []
        failed = 0

        async def call(due_s: float, channel: SocketChannel) -> None:
            nonlocal failed
            try:
                await channel.unary(wire.GRPC_PATH, self._message, timeout_s=_DEADLINE_S)
            except RpcError:
                failed += 1
            latencies_s.append(time.perf_counter() - due_s)

        due_s = time.perf_counter()
        end_s = due_s + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(sys.maxsize):
                due_s += random.expovariate(rate)
                if due_s > end_s:
                    break
                await asyncio.sleep(due_s - time.perf_counter())
                group.create_task(call(due_s, self._channels[number % _CONNECTIONS]))
        return latencies_s, failed

    def _rss_mib(self) -> float:
        """Return the resident memory of all processes but the shadow's worker."""
        found = (
            memory_of(pid) for pid, name in self._server.processes().items() if not _is_worker(name)
        )
        return sum(memory.rss for memory in found if memory is not None) / 1024


def _is_worker(name: str) -> bool:
    return not name.startswith("nereid")


def _p50_p99(latencies_s: Sequence[float]) -> tuple[float, float]:
    percentiles = quantiles(latencies_s, n=100)
    return percentiles[49], percentiles[98]


async def _measure(arguments: argparse.Namespace, mesh: _Mesh) -> Mapping[str, Sequence[Figures]]:
    figures: dict[str, list[Figures]] = {
        kind: [] for kind in (_FIRST, _AGAIN, *(arguments.kind or _MODES))
    }
    await mesh.measure(_FIRST, arguments.rate, arguments.seconds)
    for number in range(arguments.rounds):
        kinds = random.sample(list(figures), len(figures))
        for kind in kinds:
            figures[kind].append(await mesh.measure(kind, arguments.rate, arguments.seconds))
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    await mesh.close()
    return figures


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of ratios, and the ends of its bootstrapped 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    source = random.Random(1)
    means = sorted(fmean(source.choices(logs, k=len(logs))) for _ in range(_RESAMPLES))
    ends = means[round(0.025 * _RESAMPLES)], means[round(0.975 * _RESAMPLES) - 1]
    return math.exp(fmean(logs)), math.exp(ends[0]), math.exp(ends[1])


def report(figures: Mapping[str, Sequence[Figures]]) -> list[str]:
    """Return the table's lines."""
    names = ("p50_us", "p99_us", "cpu_us")
    lines = [f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}"]
    noise: tuple[float, float, float] = (1.0, 1.0, 1.0)
    for kind, rounds in figures.items():
        means = [fmean(getattr(each, name) for each in rounds) for name in names]
        ratios = [
            interval(
                [
                    getattr(own, name) / getattr(first, name)
                    for own, first in zip(rounds, figures[_FIRST], strict=True)
                ]
            )
            for name in names
        ]
        if kind == _AGAIN:
            noise = ratios[1]
        overlaps = ratios[1][1] <= noise[2] and noise[1] <= ratios[1][2]
        cells = [kind, *(f"{mean:.0f}" for mean in means)]
        cells += [f"{middle:.2f} ({low:.2f} to {high:.2f})" for middle, low, high in ratios]
        cells += [f"{sum(each.failed for each in rounds)}"]
        cells += [f"{max(each.rss_mib for each in rounds):.0f}", "yes" if overlaps else "no"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _run(arguments: argparse.Namespace, work: Path) -> Mapping[str, Sequence[Figures]]:
    mode = _write(work / "models")
    ports = process.free_ports(3)
    given = arguments.nereid_flags
    command = nereid.command(
        work / "models", work / "log", (ports[0], ports[1], ports[2]), given, arguments.tree
    )
    address = wire.Address(ports[0], ports[1])
    with process.ServerProcess(command) as server:
        for name in (mlp.NAME, _EQUAL, _SHADOW):
            wire.wait_ready(address, server.require_alive, name)
        return asyncio.run(_measure(arguments, _Mesh(server, address, mode)))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shadows", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second")
    parser.add_argument("--kind", action="append", choices=_MODES, help="by default all")
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    parser.add_argument("--tree", type=Path, help="a copy of the project to run instead")
    arguments = parser.parse_args(argv)
    process.interrupt_on_signals()
    try:
        with tempfile.TemporaryDirectory(prefix="shadows-") as work:
            figures = _run(arguments, Path(work))
    except (BenchError, OSError) as error:
        print(f"shadows: {error}", file=sys.stderr)
        return 1
    print("\n".join(report(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
