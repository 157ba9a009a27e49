"""Entry point python -m benchmarks.model_cache: 200 models, memory for 10, Zipf requests.

The benchmark compares the hit rate with the hit rates of the optimum (Belady) and of plain LRU for
the same requests. It also compares the latencies of models in memory with and without loads of
other models. First, every model is loaded once, so that its memory is known. The memory budget is a
number of slots, each of which fits one model.
"""

import argparse
import itertools
import json
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import process
from benchmarks.failure import BenchError
from benchmarks.model_cache import models, trace
from benchmarks.model_cache.clients import Client, measure_beside, replay
from benchmarks.model_cache.mesh import Mesh, serve, watching

# Before models are known they are taken for larger than they are.
_MEASURING_BYTES = 1 << 30
_HOT = 4


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_cache", description=__doc__)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--slots", type=int, default=10, help="models that fit into memory")
    parser.add_argument("--mebibytes", type=int, default=4, help="of each model's weights")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--exponent", type=float, default=1.0, help="of Zipf's law")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=5, help="of each kind, in turn")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--half-life", type=int, help="--model-popularity-half-life of the mesh")
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args(argv)


def _percentiles_ms(latencies: Sequence[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    last = len(ordered) - 1
    return {name: round(ordered[round(share * last)] * 1e3, 3) for name, share in shares.items()}


def _replay_trace(arguments: argparse.Namespace, mesh: Mesh, clients: list[Client]) -> Any:
    """Return the hit rate, and what was in memory; a request that waits for a load is no hit."""
    requests = trace.zipf(arguments.models, arguments.requests, arguments.exponent, arguments.seed)
    clients[0].ask(arguments.models - 1)
    before, cpu_before = mesh.usage(), mesh.server.cpu_s()
    with watching(mesh) as watch:
        latencies = replay(clients, requests)
    loads = mesh.usage().loads - before.loads
    cpu_s = mesh.server.cpu_s()
    cpu_s.subtract(cpu_before)
    hits = arguments.requests - loads
    best = trace.optimal_hits(requests, arguments.slots)
    lru = trace.lru_hits(requests, arguments.slots)
    return {
        "requests": arguments.requests,
        "loads": loads,
        "hit_rate": hits / arguments.requests,
        "optimal_hit_rate": best / arguments.requests,
        "lru_hit_rate": lru / arguments.requests,
        "share_of_optimum": hits / best,
        "most_models": watch.most_models,
        "most_bytes": watch.most_bytes,
        # Memory of the whole executors, not of models alone.
        "executor_bytes": mesh.executor_bytes(),
        "latency_ms": _percentiles_ms(latencies),
        # The CPU time includes that of the hits.
        "cpu_ms_per_load": {name: round(used / loads * 1e3, 2) for name, used in cpu_s.items()},
    }


def _measure_warm(arguments: argparse.Namespace, mesh: Mesh, clients: list[Client]) -> Any:
    """Measure requests for models that are in memory.

    A client of another one, or one whose every request loads a model, runs beside them; in turns,
    since machines have moods.
    """
    hot = list(range(_HOT))
    # Each model comes again after all the others: it has made way by then.
    cold = itertools.cycle(range(_HOT + 1, arguments.models))
    found: dict[str, list[list[float]]] = {"without": [], "during": []}
    waited: list[float] = []
    loads = 0
    for _ in range(arguments.rounds):
        for kind, others in (("without", itertools.repeat(_HOT)), ("during", cold)):
            replay(clients, [*hot, _HOT])
            before = mesh.usage().loads
            latencies, beside = measure_beside(
                clients[:-1], hot, clients[-1], others, arguments.seconds
            )
            found[kind].append(latencies)
            if kind == "during":
                waited += beside
                loads += mesh.usage().loads - before
    figures: dict[str, Any] = {
        f"{kind}_loads_ms": _percentiles_ms([latency for run in runs for latency in run])
        for kind, runs in found.items()
    }
    pairs = zip(found["during"], found["without"], strict=True)
    p99 = [(_percentiles_ms(one)["p99"], _percentiles_ms(other)["p99"]) for one, other in pairs]
    return figures | {
        "p99_ratio": statistics.median(during / without for during, without in p99),
        "p99_ms_by_round": p99,
        "load_ms": _percentiles_ms(waited),
        "loads_per_s": loads / arguments.rounds / arguments.seconds,
    }


def _run(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    flags = list(arguments.nereid_flags)
    if arguments.half_life is not None:
        flags.append(f"--model-popularity-half-life={arguments.half_life}")
    root = models.write_repository(work / "models", arguments.models, arguments.mebibytes)

    def connect(mesh: Mesh, count: int) -> list[Client]:
        """Return this many clients."""
        return [Client(mesh.grpc_port, arguments.mebibytes, seed) for seed in range(count)]

    with serve(root, work, _MEASURING_BYTES, flags) as mesh:
        sizes: dict[str, int] = {}
        (client,) = connect(mesh, 1)
        # The first load of a process also takes what its runtime needs once. The least popular
        # model is charged with that, until it is loaded again.
        for number in reversed(range(arguments.models)):
            client.ask(number)
            name = models.name_of(number)
            sizes[name] = mesh.usage().sizes[name]
    each = round(statistics.median(sizes.values()))
    budget = round((arguments.slots + 0.5) * each)
    with serve(root, work, budget, flags) as mesh:
        clients = connect(mesh, arguments.clients)
        figures = {
            "model_bytes": {
                "least": min(sizes.values()),
                "median": each,
                "most": max(sizes.values()),
            },
            "budget_bytes": budget,
            "trace": _replay_trace(arguments, mesh, clients),
            "warm": _measure_warm(arguments, mesh, clients),
        }
        for one in clients:
            one.close()
        return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    arguments = _arguments(argv)
    process.interrupt_on_signals()
    try:
        with tempfile.TemporaryDirectory(prefix="nereid-bench-") as name:
            figures = _run(arguments, Path(name))
    except (BenchError, OSError) as error:
        print(f"model_cache: {error}", file=sys.stderr)
        return 1
    print(json.dumps(figures, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
