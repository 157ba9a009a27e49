"""Entry point, ``python -m benchmarks.embeddings``: embeddings of mixed lengths, and decisions.

Nereid, infinity (embeddings alone) and a FastAPI server around sentence-transformers' loop are
measured in turns, and with them the loop without a server. Rates are meaningful only on a quiet
machine; the ratios of a round and CPU per token can also be compared on a busy one.
"""

import argparse
import itertools
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.embeddings import cached
from benchmarks.embeddings.load import (
    BareLoop,
    Run,
    await_server,
    decide,
    decision_request,
    embed,
    embedding_request,
    run_clients,
)
from benchmarks.embeddings.peers import DECIDERS, NEREID, PEERS, command
from benchmarks.embeddings.texts import (
    DECIDER,
    NAME,
    make_questions,
    make_texts,
    write_decider,
    write_embedder,
)
from benchmarks.failure import BenchError
from benchmarks.process import ServerProcess, ignore_signals, interrupt_on_signals

_WARM_S = 3.0
_TOLERANCE = 1e-3
_BARE = "bare"
# A measurement takes longer where all clients' first calls together have more rows.
_ROWS = 256
_COLUMNS = (
    *("peer", "rows/s", "tokens/s", "p50 ms", "p99 ms", "CPU us/token"),
    *("CPU x Nereid's", "Nereid's rate x", "Nereid's p99 x", "rate x bare"),
)

Servers = dict[str, tuple[int, ServerProcess]]
Calls = list[tuple[bytes, int, int]]


def _measure(arguments: argparse.Namespace, work: Path) -> None:
    hub, repository = work / "hub", work / "repository"
    embedder = write_embedder(hub / NAME, arguments.models, for_nereid=False)
    write_embedder(repository / NAME, arguments.models, for_nereid=True)
    decider = write_decider(hub / DECIDER, arguments.models, for_nereid=False)
    write_decider(repository / DECIDER, arguments.models, for_nereid=True)
    texts, counts = make_texts(embedder)
    pairs, pair_counts = make_questions(decider)
    bare = BareLoop(embedder, texts, "sentence_embedding")
    bare_decider = BareLoop(decider, pairs, "logits")
    vectors = bare.outputs(texts[:20])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    probabilities = 1 / (1 + np.exp(-bare_decider.outputs(pairs[:20])[:, 0]))
    with ExitStack() as stack:
        stack.callback(ignore_signals)
        servers: Servers = {}
        for peer in arguments.only:
            log = work / f"{peer}.log"
            port, started = command(peer, repository, hub, log, arguments.nereid_flags)
            server = stack.enter_context(ServerProcess(started))
            servers[peer] = port, server
            await_server(port, server, texts[0])
            _check(f"{peer}: vectors", embed(port, texts[:20]), vectors)
            if peer in DECIDERS:
                _check(f"{peer}: probabilities", decide(port, pairs[:20]), probabilities)
        if arguments.texts:
            print(_heading("clients x texts"))
        for clients, size in itertools.product(arguments.clients, arguments.texts):
            calls = [
                (embedding_request(texts[begin:end]), size, sum(counts[begin:end]))
                for begin, end in _parts(len(texts), size)
            ]
            _measure_cell(servers, bare, calls, clients, size, arguments)
        if arguments.questions:
            print(_heading("clients x questions"))
        deciders = {peer: each for peer, each in servers.items() if peer in DECIDERS}
        for clients, size in itertools.product(arguments.deciding_clients, arguments.questions):
            calls = [
                (decision_request(pairs[begin:end]), size, sum(pair_counts[begin:end]))
                for begin, end in _parts(len(pairs), size)
            ]
            _measure_cell(deciders, bare_decider, calls, clients, size, arguments)


def _parts(count: int, size: int) -> list[tuple[int, int]]:
    return [(begin, begin + size) for begin in range(0, count - size + 1, size)]


def _check(name: str, found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    worst = float(np.abs(found - expected).max())
    if worst > _TOLERANCE:
        raise BenchError(f"{name} differ from onnxruntime's by {worst}")
    print(f"{name} as onnxruntime's, to {worst:.1e}", flush=True)


def _measure_cell(
    servers: Servers,
    bare: BareLoop,
    calls: Calls,
    clients: int,
    size: int,
    arguments: argparse.Namespace,
) -> None:
    """Measure one number of clients with one size of calls, and print its rows of the table."""
    runs: dict[str, Callable[[float], Run]] = {_BARE: lambda _: bare.run(arguments.seconds)}
    for peer, (port, server) in servers.items():
        runs[peer] = partial(run_clients, port, server, calls, clients)
        runs[peer](_WARM_S)
    seconds = arguments.seconds * max(1.0, clients * size / _ROWS)
    rounds = [_round(runs, number, seconds) for number in range(arguments.rounds)]
    _print_rows(f"{clients} x {size}", rounds)


def _round(runs: dict[str, Callable[[float], Run]], number: int, seconds: float) -> dict[str, Run]:
    """Measure all in turns; another one leads in each round."""
    names = [*runs]
    first = number % len(names)
    return {name: runs[name](seconds) for name in (*names[first:], *names[:first])}


def _heading(cell: str) -> str:
    columns = cell, *_COLUMNS
    rule = "---", "---", *["---:"] * (len(columns) - 2)
    return f"| {' | '.join(columns)} |\n| {' | '.join(rule)} |"


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
            _ratios([two.cpu_us / one.cpu_us for one, two in pairs]),
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
    return [int(number) for number in text.split(",") if number]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embeddings", description=__doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[*PEERS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a measurement, at least")
    parser.add_argument("--clients", type=_numbers, default=[1, 16, 64])
    parser.add_argument("--texts", type=_numbers, default=[1, 32], help="of each call")
    parser.add_argument("--deciding-clients", type=_numbers, default=[1, 16])
    parser.add_argument(
        "--questions", type=_numbers, default=[1, 20, 400], help="of each call; divisors of 400"
    )
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    parser.add_argument("--models", type=Path, default=Path("models"), help="kept between runs")
    parser.add_argument(
        "--cached", action="store_true", help="measure only what a text in the response cache takes"
    )
    arguments = parser.parse_args(argv)
    if unknown := {*arguments.only} - {*PEERS}:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    interrupt_on_signals()
    with tempfile.TemporaryDirectory(prefix="nereid-bench-") as directory:
        if arguments.cached:
            cached.measure(arguments.models, Path(directory))
        else:
            _measure(arguments, Path(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
