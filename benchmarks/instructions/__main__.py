"""Entry point ``python -m benchmarks.instructions``: counts the cost of requests to a mesh."""

import argparse
import json
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import process
from benchmarks.failure import BenchError
from benchmarks.instructions import bytecodes, callgrind
from benchmarks.instructions.clients import LOADS, Clients
from benchmarks.instructions.mesh import CountedMesh, counted_mesh

# The first requests fill the servers' tables, and warm up what the interpreter specialises.
_WARM_UP = 200


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions",
        description="what a request costs from socket to socket, counted",
    )
    parser.add_argument("--count", choices=("instructions", "bytecodes"))
    parser.add_argument("--load", action="append", choices=LOADS)
    parser.add_argument("--requests", type=int, default=640, help="of each load")
    parser.add_argument("--top", type=int, default=20, help="how many functions to print")
    parser.add_argument(
        "--path", action="store_true", help="print a request's calls, with bytecodes"
    )
    parser.add_argument("--backend", default="onnxruntime", choices=("onnxruntime", "identity"))
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    parser.add_argument("--json", type=Path, help="write the totals to this file")
    parser.add_argument("--work-dir", type=Path, help="keep profiles and logs there")
    arguments = parser.parse_args(argv)
    has_valgrind = shutil.which("valgrind") is not None
    arguments.count = arguments.count or ("instructions" if has_valgrind else "bytecodes")
    if arguments.count == "instructions" and not has_valgrind:
        parser.error("valgrind is missing (Debian: apt install valgrind)")
    return arguments


def _count_instructions(
    arguments: argparse.Namespace, work: Path, mesh: CountedMesh, clients: Clients
) -> dict[str, float]:
    totals = {}
    for cell in arguments.load or LOADS:
        clients.run(cell, _WARM_UP)
        began = time.monotonic()
        loaded = _profiles(mesh, work, partial(clients.run, cell, arguments.requests))
        # Timers cost by the time that a run takes, which is a hundred times as long as usual.
        idle_s = time.monotonic() - began
        idle = _profiles(mesh, work, partial(time.sleep, idle_s))
        for name, profile in loaded.items():
            profile.subtract(idle[name])
            totals[f"{cell} {name}"] = profile.total / arguments.requests
            _print_counts(f"{cell} {name}: instructions", profile.by_object(), arguments, top=6)
            _print_counts(f"{cell} {name}: instructions", profile.by_function(), arguments)
            _print_counts(f"{cell} {name}: system calls", profile.system_calls(), arguments)
            print(f"{cell} {name}: {profile.allocations / arguments.requests:.1f} allocations\n")
    return totals


def _profiles(
    mesh: CountedMesh, work: Path, run: Callable[[], None]
) -> dict[str, callgrind.Profile]:
    """Return the profiles of the processes while `run` runs, by their names."""
    for pid in mesh.pids.values():
        callgrind.start_counting(pid)
    run()
    return {
        name: callgrind.stop_counting(pid, work / f"{name}.callgrind")
        for name, pid in mesh.pids.items()
    }


def _count_bytecodes(
    arguments: argparse.Namespace, work: Path, mesh: CountedMesh, clients: Clients
) -> dict[str, float]:
    totals = {}
    for cell in arguments.load or LOADS:
        clients.run(cell, _WARM_UP)
        counting = {}
        for name in mesh.pids:
            counting[name] = connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(work / f"{name}.sock"))
            connection.recv(1)
        clients.run(cell, arguments.requests)
        for name, connection in counting.items():
            counts = bytecodes.counts_of(connection)
            connection.close()
            totals[f"{cell} {name}"] = sum(counts["bytecodes"].values()) / arguments.requests
            for kind in ("bytecodes", "calls", "native"):
                _print_counts(f"{cell} {name}: {kind}", counts[kind], arguments)
            if arguments.path:
                for depth, function in counts["path"]:
                    print("  " * depth + function)
    return totals


def _print_counts(
    title: str, counts: Mapping[str, int], arguments: argparse.Namespace, top: int = 0
) -> None:
    requests = arguments.requests
    print(f"{title}: {sum(counts.values()) / requests:,.1f} per request")
    for name, count in Counter(counts).most_common(top or arguments.top):
        print(f"  {count / requests:12,.2f}  {name}")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    arguments = _arguments(argv)
    process.interrupt_on_signals()
    with ExitStack() as stack:
        if arguments.work_dir is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nereid-count-")))
        else:
            work = arguments.work_dir.resolve()
            work.mkdir(parents=True, exist_ok=True)

        def wrap(name: str, argv: Sequence[str]) -> Sequence[str]:
            if arguments.count == "bytecodes":
                return bytecodes.command(work / f"{name}.sock", argv)
            return callgrind.command(work / f"{name}.callgrind", [sys.executable, *argv])

        try:
            mesh = stack.enter_context(
                counted_mesh(work, arguments.backend, arguments.nereid_flags, wrap)
            )
            clients = Clients(mesh.address, work)
            stack.callback(clients.close)
            count = _count_instructions if arguments.count == "instructions" else _count_bytecodes
            totals = count(arguments, work, mesh, clients)
        except (BenchError, OSError) as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return 1
        finally:
            process.ignore_signals()
    for cell, total in totals.items():
        print(f"{cell:20} {total:12,.0f} {arguments.count} per request")
    if arguments.json:
        arguments.json.write_text(json.dumps(totals, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
