"""python -m benchmarks.overload: offer a mesh many times its capacity.

The command writes docs/figures/overload.json and .svg.

First, the capacity is measured with a load that is a little higher. Then there are three phases: a
load equal to the capacity, --times the capacity, and half of the capacity.
"""

import argparse
import asyncio
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import process, wire
from benchmarks.failure import BenchError
from benchmarks.overload import model
from benchmarks.overload.clients import SERVED, Clients
from benchmarks.overload.figures import Phase, figures_of
from benchmarks.overload.plot import draw
from benchmarks.peers import nereid
from benchmarks.soak.memory import memory_of

_FIGURES = Path(__file__).parents[2] / "docs" / "figures"
_START_S = 90.0


class _Run(NamedTuple):
    """Flags of the mesh, and the default_queue_policy of the model, for half the deadline."""

    flags: Sequence[str] = ()
    policy: str = ""


_RUNS = {
    "--admission=none": _Run(),
    "--admission=codel": _Run(("--admission=codel",)),
    "max_queue_size": _Run(policy="max_queue_size: {requests}"),
    "timeout": _Run(policy="default_timeout_microseconds: {microseconds}"),
    "timeout, delayed": _Run(
        policy="default_timeout_microseconds: {microseconds} timeout_action: DELAY"
    ),
}
_DRAWN = ("--admission=none", "--admission=codel")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--times", type=float, default=10.0, help="of capacity, under overload")
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload")
    parser.add_argument("--calm-seconds", type=float, default=10.0, help="before and after it")
    parser.add_argument("--deadline-s", type=float, default=1.0, help="of each request")
    parser.add_argument("--urgent", type=float, default=0.03, help="the part that is")
    parser.add_argument(
        "--grpc", type=float, default=0.5, help="the part over gRPC, with deadlines"
    )
    parser.add_argument("--execution-ms", type=float, default=40.0, help="of a batch of 8")
    parser.add_argument("--run", action="append", choices=_RUNS, help=f"by default {_DRAWN}")
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    parser.add_argument("--output", type=Path, default=_FIGURES, help="a directory")
    return parser.parse_args(argv)


async def _measure(
    arguments: argparse.Namespace, server: process.ServerProcess, address: wire.Address
) -> dict[str, Any]:
    clients = Clients(address, arguments.deadline_s, arguments.urgent, arguments.grpc)
    # The rate of a batch of 8 in so many milliseconds, and a little more for the way there and
    # back.
    most = 1000 * model.BATCH / arguments.execution_ms
    calm_s = arguments.calm_seconds
    # The instance has to be busy before the rate is measured.
    await clients.offer(1.1 * most, 1.0)
    since_s = clients.now_s
    await clients.offer(1.1 * most, calm_s)
    until_s = clients.now_s
    ended = [
        outcome.sent_s + outcome.latency_s for outcome in clients.outcomes if outcome.kind == SERVED
    ]
    capacity = sum(since_s <= time_s < until_s for time_s in ended) / (until_s - since_s)
    if not capacity:
        raise BenchError("nothing is served; the server's log:\n" + server.log_tail())
    await asyncio.sleep(2 * arguments.deadline_s)
    phases = []
    memory = {"before": _memory(server)}
    plan = (
        ("warm", 1.0, calm_s),
        ("overload", arguments.times, arguments.seconds),
        ("after", 0.5, calm_s),
    )
    for name, times, seconds in plan:
        since_s = clients.now_s
        await clients.offer(times * capacity, seconds)
        phases.append(Phase(name, times, since_s, clients.now_s))
        memory[name] = _memory(server)
        server.require_alive()
    await clients.close()
    figures = figures_of(clients.outcomes, phases, capacity)
    return {**figures, "unsent": clients.unsent, "rss_kib": memory}


def _memory(server: process.ServerProcess) -> dict[str, int]:
    """Return the resident memory of each process, in KiB."""
    found = {f"{name} {pid}": memory_of(pid) for pid, name in server.processes().items()}
    return {name: memory.rss for name, memory in found.items() if memory is not None}


def _run(arguments: argparse.Namespace, run: _Run) -> dict[str, Any]:
    half_s = arguments.deadline_s / 2
    policy = run.policy.format(
        requests=round(half_s * model.BATCH / (arguments.execution_ms / 1000)),
        microseconds=round(half_s * 1e6),
    )
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        work = Path(name)
        repository = model.write_repository(work / "repository", arguments.execution_ms, policy)
        first, second, third = process.free_ports(3)
        given = ["--executors=1", *run.flags, *arguments.nereid_flags]
        command = nereid.command(repository, work / "log", (first, second, third), given)
        server = stack.enter_context(process.ServerProcess(command))
        address = wire.Address(first, second)
        deadline = time.monotonic() + _START_S
        while f"localhost:{first}" not in server.log_tail(30):
            server.require_alive()
            if time.monotonic() > deadline:
                raise BenchError(f"not ready after {_START_S:g} s:\n{server.log_tail()}")
            time.sleep(0.1)
        return asyncio.run(_measure(arguments, server, address))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    arguments = _arguments(argv)
    process.interrupt_on_signals()
    runs: dict[str, Any] = {}
    try:
        for name in arguments.run or _DRAWN:
            runs[name] = _run(arguments, _RUNS[name])
            shown = {key: value for key, value in runs[name].items() if key != "seconds"}
            print(name, json.dumps(shown, indent=1), flush=True)
    except (BenchError, OSError) as error:
        print(f"overload: {error}", file=sys.stderr)
        return 1
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "overload.json").write_text(json.dumps(runs, indent=1) + "\n")
    (arguments.output / "overload.svg").write_text(draw(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
