"""Entry point ``python -m benchmarks.analyze_search``. A run resumes from its checkpoints."""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import process
from benchmarks.analyze_search.searches import Searches, inner_rules, rows
from benchmarks.analyze_search.spaces import MAX_IN_FLIGHT, SECONDS, SPACES
from benchmarks.failure import BenchError
from benchmarks.models import registry
from benchmarks.models.workload import Workload
from benchmarks.peers import environment, nereid
from benchmarks.process import ServerProcess, free_ports
from nereid_analyze.job import Job
from nereid_analyze.space.model_settings import defaults_of, is_ensemble
from nereid_analyze.target.measured_models import MeasuredModels, MeasuredTarget
from nereid_perf.endpoint import Endpoint
from nereid_perf.server import Server, ServerError

_ROOT = Path(__file__).resolve().parents[2]
_READY_S = 60.0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.analyze_search",
        description="nereid analyze's search beside an exhaustive one",
    )
    parser.add_argument("--model", action="append", choices=tuple(SPACES), help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, help="of a window (default: 0.4; resnet50: 1.5)")
    parser.add_argument("--rounds", type=int, default=5, help="of the winners, in turns")
    parser.add_argument(
        "--checkpoints",
        type=Path,
        default=Path(tempfile.gettempdir(), "nereid-analyze-search"),
        help="directory: what was measured there is not measured again",
    )
    parser.add_argument("--nereid-tree", type=Path, default=_ROOT, help="a copy of the project")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    arguments = _arguments(argv)
    process.interrupt_on_signals()
    found: dict[str, list[dict[str, Any]]] = {}
    for name in arguments.model or SPACES:
        began = time.monotonic()
        found[name] = _search(name, arguments)
        print(f"\n{name}, {time.monotonic() - began:.0f} s\n{_table(found[name])}\n", flush=True)
        if arguments.json:
            document = {"command": sys.argv[1:], "models": found}
            arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _search(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    workload = registry.make(name, environment.CACHE / "models")
    seconds = arguments.seconds or SECONDS.get(name, 0.4)
    with _served(workload, arguments.nereid_tree.resolve()) as address:
        target = MeasuredTarget(
            endpoint=Endpoint("grpc", address), models={workload.served: 1}, flags={}
        )
        with MeasuredModels(target) as measured:
            tuned = {
                model: config
                for model, config in measured.configs.items()
                if not is_ensemble(config)
            }
            job = Job(
                title=name,
                models=target.models,
                configs=measured.configs,
                space=SPACES[name](),
                defaults={model: defaults_of(config) for model, config in tuned.items()},
                inner=inner_rules(seconds, MAX_IN_FLIGHT.get(name, 128)),
            )
            measured.use_default(job.space.default)
            searches = Searches(job, measured, arguments.checkpoints)
            results = [searches.exhaustive()]
            results += [searches.adaptive(seed) for seed in arguments.seeds]
            best, *others = (result.winner for result in results)
            compared = searches.compare(best, others, 2 * seconds, arguments.rounds)
    return rows(results, compared)


@contextmanager
def _served(workload: Workload, tree: Path) -> Iterator[str]:
    """Yield the gRPC address of a mesh that loads models when it is asked to."""
    first, second, third = free_ports(3)
    with tempfile.TemporaryDirectory(prefix="nereid-analyze-search-") as work:
        repository = Path(work, "models")
        workload.write(repository, "onnxruntime")
        flags = ["--model-control-mode=explicit"]
        command = nereid.command(
            repository, Path(work, "nereid.log"), (first, second, third), flags, tree
        )
        with ServerProcess(command) as process_:
            address = f"127.0.0.1:{second}"
            _await(Server(Endpoint("grpc", address)), process_)
            yield address


def _await(server: Server, started: ServerProcess) -> None:
    give_up = time.monotonic() + _READY_S
    while True:
        started.require_alive()
        try:
            if server.is_ready():
                return
            why = "it is not ready"
        except ServerError as error:
            why = str(error)
        if time.monotonic() > give_up:
            raise BenchError(f"nereid: {why}")
        time.sleep(0.1)


def _table(found: Sequence[dict[str, Any]]) -> str:
    """Return winners' rates beside the exhaustive one's: median of rounds' ratios, least, most."""
    head = ["search", "candidates", "measurements", "seconds measured", "winner", "rate", "ratio"]
    lines = [head, ["---"] * len(head)]
    for row in found:
        ratios = row["ratios"]
        lines.append(
            [
                row["search"],
                str(row["candidates"]),
                f"{row['measurements']} ({row['measurements_share']:.2f})",
                f"{row['seconds']:.0f} ({row['seconds_share']:.2f})",
                row["winner"],
                f"{row['rate']:,.0f}/s",
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})",
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
