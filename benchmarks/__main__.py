"""Entry point, ``python -m benchmarks``: starts the peers, runs the cells in turn, prints.

With benchmarks.cache the only module that reads argv.
"""

import argparse
import json
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnxruntime

from benchmarks import load, measure, model, nereid, process, report, triton, wire
from benchmarks.failure import BenchError

SERVERS = ("nereid", "triton")
BARE = "bare"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Nereid beside Triton's Python backend and the bare onnxruntime loop",
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of load in each cell and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=(*SERVERS, BARE))
    parser.add_argument("--protocol", action="append", choices=load.PROTOCOLS)
    parser.add_argument("--concurrency", type=_concurrencies, default=[1, 16, 64])
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--triton-venv", type=Path, default=triton.DEFAULT_VENV)
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    parser.add_argument(
        "--nereid-backend",
        choices=("onnxruntime", "python"),
        default="onnxruntime",
        help="python: the very model.py that Triton serves",
    )
    parser.add_argument("--work-dir", type=Path, help="keep repositories and logs there")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1 or arguments.seconds <= 0:
        parser.error("--rounds and --seconds must be positive")
    return arguments


def _concurrencies(text: str) -> list[int]:
    values = [int(part) for part in text.split(",") if part.isdecimal()]
    if len(values) != text.count(",") + 1 or min(values) < 1:
        raise argparse.ArgumentTypeError("positive integers joined by commas are expected")
    return values


def _about(arguments: argparse.Namespace, peers: Sequence[str]) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "?")
    about = {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "load_at_start": os.getloadavg()[0],
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "nereid_flags": arguments.nereid_flags,
        "nereid_backend": arguments.nereid_backend,
    }
    if "triton" in peers:
        about["triton_onnxruntime"] = triton.onnxruntime_version(arguments.triton_venv)
    return about


def _start(name: str, arguments: argparse.Namespace, work: Path, stack: ExitStack) -> measure.Peer:
    first, second, third = process.free_ports(3)
    ports = (first, second, third)
    if name == "triton":
        server = stack.enter_context(triton.serve(arguments.triton_venv, work, ports))
    else:
        python_model = triton.PYTHON_MODEL if arguments.nereid_backend == "python" else None
        serving = nereid.serve(work, ports, arguments.nereid_flags, python_model)
        server = stack.enter_context(serving)
    return measure.Peer(name, server, wire.Address(ports[0], ports[1]), work / f"{name}-client")


def _cells(arguments: argparse.Namespace, names: Sequence[str], turn: int) -> list[measure.Cell]:
    """One round's cells: peers alternate within each, and another one leads in each round."""
    lead = turn % len(names) if names else 0
    order = [*names[lead:], *names[:lead]]
    return [
        measure.Cell(name, protocol, concurrency)
        for protocol in arguments.protocol or load.PROTOCOLS
        for concurrency in arguments.concurrency
        for name in order
    ]


def _run(arguments: argparse.Namespace, work: Path, stack: ExitStack) -> None:
    wanted = tuple(arguments.only or (*SERVERS, BARE))
    protocols = tuple(arguments.protocol or load.PROTOCOLS)
    names = [name for name in SERVERS if name in wanted]
    if names:
        load.require_clients(protocols)
    if "triton" in names:
        triton.ensure_venv(arguments.triton_venv)
    about = _about(arguments, names)
    print(" ".join(f"{key}={value}" for key, value in about.items()), flush=True)
    if about["load_at_start"] > 0.5:
        print(f"note: the machine is not idle (load {about['load_at_start']:.1f})", flush=True)

    def start(name: str) -> measure.Peer:
        peer = _start(name, arguments, work, stack)
        peer.prepare(protocols)
        return peer

    peers = {name: start(name) for name in names}
    samples: report.Samples = {}
    for turn in range(arguments.rounds):
        for cell in _cells(arguments, names, turn):
            sample = _measure(peers, cell, arguments.seconds, start)
            samples.setdefault(cell, []).append(sample)
            _progress(turn, cell, sample)
        if BARE in wanted:
            _bare_round(arguments, work, samples)
    _finish(arguments, samples, about)


def _measure(
    peers: dict[str, measure.Peer],
    cell: measure.Cell,
    seconds: float,
    start: Callable[[str], measure.Peer],
) -> measure.Sample:
    """One sample. A tritonserver that crashed (it does, now and then, when h2load hangs up) is
    started anew and measured again; Nereid gets no second chance.
    """
    try:
        return measure.measure(peers[cell.peer], cell, seconds)
    except BenchError as error:
        if cell.peer != "triton" or peers["triton"].server.alive:
            raise
        print(f"note: {str(error).splitlines()[0]}; it is started anew", file=sys.stderr)
    peers["triton"] = start("triton")
    return measure.measure(peers["triton"], cell, seconds)


def _bare_round(arguments: argparse.Namespace, work: Path, samples: report.Samples) -> None:
    path = model.write_file(work / "bare.onnx")
    for batch_size in sorted(set(arguments.concurrency)):
        cell = measure.Cell(BARE, "-", batch_size)
        seconds = min(2.0, arguments.seconds)  # it is steady: no need for more
        samples.setdefault(cell, []).append(measure.measure_bare(path, batch_size, seconds))


def _progress(turn: int, cell: measure.Cell, sample: measure.Sample) -> None:
    print(
        f"round {turn + 1} {cell.protocol} c={cell.concurrency} {cell.peer}: "
        f"{sample.infer_per_s:,.0f} infer/s",
        file=sys.stderr,
        flush=True,
    )


def _finish(arguments: argparse.Namespace, samples: report.Samples, about: dict[str, Any]) -> None:
    print("\n" + report.table(samples))
    ratios = report.ratios(samples)
    if ratios:
        print("\n" + report.ratio_table(ratios))
    if arguments.json:
        arguments.json.write_text(json.dumps(report.document(samples, about), indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    process.interrupt_on_signals()
    with ExitStack() as stack:
        if arguments.work_dir is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nereid-bench-")))
        else:
            work = arguments.work_dir.resolve()
        try:
            _run(arguments, work, stack)
        except BenchError as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("benchmarks: interrupted, stopping the servers", file=sys.stderr)
            return 130
        finally:
            process.ignore_signals()
    return 0


if __name__ == "__main__":
    sys.exit(main())
