"""Entry point, ``python -m benchmarks.embeddings``: embeddings of texts of mixed lengths.

Nereid, infinity and a FastAPI server around sentence-transformers' loop are measured in turns, and
with them the loop without a server. Rates are meaningful only on a quiet machine; the ratios of a
round and CPU per token can also be compared on a busy one.
"""

import argparse
import itertools
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.embeddings.load import BareLoop, Run, embed, request_of, run_clients
from benchmarks.embeddings.peers import NEREID, PEERS, command
from benchmarks.embeddings.texts import NAME, make_texts, write_folder
from benchmarks.failure import BenchError
from benchmarks.process import ServerProcess, ignore_signals, interrupt_on_signals

_START_S = 180
_WARM_S = 3.0
_TOLERANCE = 1e-3
_BARE = "bare"
_HEADS = (
    (
        *("clients x texts", "peer", "texts/s", "tokens/s", "p50 ms", "p99 ms", "CPU us/token"),
        *("Nereid's rate x", "Nereid's p99 x", "rate x bare"),
    ),
    ("---", "---", *["---:"] * 8),
)


def _measure(arguments: argparse.Namespace, work: Path) -> None:
    folder = write_folder(work / "hub" / NAME, arguments.models, for_nereid=False)
    write_folder(work / "repository" / NAME, arguments.models, for_nereid=True)
    texts, counts = make_texts(folder)
    bare = BareLoop(folder, texts)
    expected = bare.embed(texts[:20])
    with ExitStack() as stack:
        stack.callback(ignore_signals)
        servers: dict[str, tuple[int, ServerProcess]] = {}
        for peer in arguments.only:
            log = work / f"{peer}.log"
            port, started = command(peer, work / "repository", folder, log, arguments.nereid_flags)
            server = stack.enter_context(ServerProcess(started))
            servers[peer] = port, server
            vectors = _first_vectors(port, server, texts[:20])
            worst = float(np.abs(vectors - expected).max())
            if worst > _TOLERANCE:
                raise BenchError(f"{peer}: vectors differ from onnxruntime's by {worst}")
            print(f"{peer}: vectors as onnxruntime's, to {worst:.1e}", flush=True)
        for line in _HEADS:
            print(f"| {' | '.join(line)} |")
        for clients, size in itertools.product(arguments.clients, arguments.texts):
            calls = [
                (
                    request_of(texts[begin : begin + size]),
                    size,
                    sum(counts[begin : begin + size]),
                )
                for begin in range(0, len(texts) - size + 1, size)
            ]
            runs: dict[str, Callable[[float], Run]] = {_BARE: bare.run}
            for peer, (port, server) in servers.items():

                def run(seconds: float, port: int = port, server: ServerProcess = server) -> Run:
                    return run_clients(port, server, calls, clients, seconds)  # noqa: B023

                runs[peer] = run
                run(_WARM_S)
            rounds = [_round(runs, number, arguments.seconds) for number in range(arguments.rounds)]
            _print_rows(f"{clients} x {size}", rounds)


def _round(runs: dict[str, Callable[[float], Run]], number: int, seconds: float) -> dict[str, Run]:
    """Measure all in turns; another one leads in each round."""
    names = [*runs]
    first = number % len(names)
    return {name: runs[name](seconds) for name in (*names[first:], *names[:first])}


def _first_vectors(port: int, server: ServerProcess, texts: Sequence[str]) -> np.ndarray[Any, Any]:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            return embed(port, texts)
        except (OSError, BenchError, json.JSONDecodeError):
            server.require_alive()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _print_rows(cell: str, rounds: Sequence[dict[str, Run]]) -> None:
    for peer in (NEREID, *(name for name in rounds[0] if name != NEREID)):
        if peer not in rounds[0]:
            continue
        own = [each[peer] for each in rounds]
        latencies = [latency for run in own for latency in run.latencies_ms]
        p50, p99 = np.percentile(latencies, (50, 99)) if latencies else (0, 0)
        ours = [each.get(NEREID) for each in rounds]
        pairs = [(one, two) for one, two in zip(ours, own, strict=True) if one is not None]
        cells = [
            *(cell, peer, f"{statistics.median(run.rate for run in own):.0f}"),
            f"{statistics.median(run.tokens_per_s for run in own):.0f}",
            *((f"{p50:.1f}", f"{p99:.1f}") if latencies else ("-", "-")),
            f"{statistics.median(run.cpu_us for run in own):.1f}",
            _ratios([one.tokens_per_s / two.tokens_per_s for one, two in pairs]),
            _ratios([one.p99_ms / two.p99_ms for one, two in pairs]) if latencies else "-",
            _ratios(
                [
                    run.tokens_per_s / each[_BARE].tokens_per_s
                    for run, each in zip(own, rounds, strict=True)
                ]
            ),
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def _ratios(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embeddings", description=__doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[*PEERS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--clients", type=_numbers, default=[1, 16, 64])
    parser.add_argument("--texts", type=_numbers, default=[1, 32], help="of each call")
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    parser.add_argument("--models", type=Path, default=Path("models"), help="kept between runs")
    arguments = parser.parse_args(argv)
    if unknown := {*arguments.only} - {*PEERS}:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    interrupt_on_signals()
    with tempfile.TemporaryDirectory(prefix="nereid-bench-") as directory:
        _measure(arguments, Path(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
