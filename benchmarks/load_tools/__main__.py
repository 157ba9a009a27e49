"""Entry point, ``python -m benchmarks.load_tools --perf-analyzer PATH``."""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks import process
from benchmarks.failure import BenchError
from benchmarks.load_tools import servers
from benchmarks.load_tools.settings import SETTINGS, Setting, Target
from benchmarks.load_tools.tools import NEREID, PERF_ANALYZER, Sample, Tools
from benchmarks.peers import environment, native

_ROOT = Path(__file__).resolve().parents[2]
# A sample for each round, by setting and tool.
_Samples = dict[str, dict[str, list[Sample]]]
# A figure, its name, and by how much `nereid perf` may be off: below, above.
_FIGURES = (
    ("rate", "infer/s", 0.95, 1.05),
    ("p50_us", "p50 us", 0.9, 1.1),
    ("p99_us", "p99 us", 0.9, 1.1),
    ("cpu_us", "CPU us", 0.0, 0.5),
)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load_tools",
        description="nereid perf beside perf_analyzer on the same servers, in turns",
    )
    parser.add_argument(
        "--perf-analyzer", type=Path, default=Path(shutil.which(PERF_ANALYZER) or PERF_ANALYZER)
    )
    parser.add_argument(
        "--server", action="append", choices=servers.NAMES, help="default: mock", metavar="NAME"
    )
    parser.add_argument("--url", help="HOST:HTTP_PORT,GRPC_PORT of a server that runs, instead")
    parser.add_argument("--model", default="mlp", help="of that server")
    parser.add_argument("--sequence-model", default="mlp_sequences", help="of that server")
    parser.add_argument(
        "--setting", action="append", choices=[setting.name for setting in SETTINGS], metavar="NAME"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each of three windows")
    parser.add_argument(
        "--nereid-tree", type=Path, default=_ROOT, help="a copy of the project to run"
    )
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1 or arguments.seconds < 0.3:
        parser.error("--rounds: at least 1; --seconds: at least 0.3")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison, and return the exit code."""
    arguments = _arguments(argv)
    process.interrupt_on_signals()
    found: dict[str, _Samples] = {}
    with tempfile.TemporaryDirectory(prefix="nereid-load-tools-") as work:
        tree = arguments.nereid_tree.resolve()
        tools = Tools(arguments.perf_analyzer, tree, Path(work), arguments.seconds)
        names = ["url"] if arguments.url else arguments.server or [servers.MOCK]
        for name in names:
            found[name] = {}
            try:
                _measure(name, arguments, tools, found[name])
            except (BenchError, OSError) as error:
                print(f"note: {name}: {error}", file=sys.stderr)
            print(f"\n{name}\n{_table(found[name])}", flush=True)
    if arguments.json:
        document = {
            "command": sys.argv[1:],
            "servers": {
                name: {
                    setting: {tool: [asdict(run) for run in runs] for tool, runs in own.items()}
                    for setting, own in samples.items()
                }
                for name, samples in found.items()
            },
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _measure(name: str, arguments: argparse.Namespace, tools: Tools, samples: _Samples) -> None:
    wanted = [
        setting for setting in SETTINGS if setting.name in (arguments.setting or setting.name)
    ]
    if name == servers.MOCK:
        # The requests of each setting take their own time.
        for setting in wanted:
            with servers.mock(setting, tools.tree, tools.work) as target:
                _rounds([setting], target, arguments.rounds, tools, samples)
        return
    with _running(name, arguments, tools) as target:
        _rounds(wanted, target, arguments.rounds, tools, samples)


@contextmanager
def _running(name: str, arguments: argparse.Namespace, tools: Tools) -> Iterator[Target]:
    if arguments.url:
        http, _, grpc_port = arguments.url.partition(",")
        host = http.rpartition(":")[0]
        yield Target(name, http, f"{host}:{grpc_port}", arguments.model, arguments.sequence_model)
        return
    if name == native.NAME:
        native.require()
    models = environment.CACHE / "models"
    with servers.real(name, tools.tree, tools.work, models) as target:
        yield target


def _rounds(
    wanted: Sequence[Setting], target: Target, rounds: int, tools: Tools, samples: _Samples
) -> None:
    failed: set[tuple[str, str]] = set()
    for turn in range(rounds):
        for setting in wanted:
            order = (PERF_ANALYZER, NEREID) if turn % 2 == 0 else (NEREID, PERF_ANALYZER)
            for tool in order:
                if (setting.name, tool) in failed:
                    continue
                try:
                    sample = tools.run(tool, setting, target, servers.counter(target, setting))
                except BenchError as error:
                    failed.add((setting.name, tool))
                    print(f"note: {target.name} {setting.name} {tool}: {error}", file=sys.stderr)
                    continue
                samples.setdefault(setting.name, {}).setdefault(tool, []).append(sample)
                print(
                    f"round {turn + 1} {target.name} {setting.name} {tool}: {sample.rate:,.0f}/s,"
                    f" p50 {sample.p50_us:,.0f} us, p99 {sample.p99_us:,.0f} us,"
                    f" CPU {sample.cpu_us:.1f} us",
                    file=sys.stderr,
                    flush=True,
                )


def _table(samples: _Samples) -> str:
    """Return medians of both, then the median of each round's ratio with the lowest and highest.

    A tool that cannot measure this server has no figures.
    """
    head = ["setting"]
    for _, name, _, _ in _FIGURES:
        head += [f"{name} (perf_analyzer)", f"{name} (nereid perf)", "ratio"]
    rows = [head, ["---"] * len(head)]
    rows += [[name, *_cells(own)] for name, own in samples.items()]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.append("\n*: beyond the aim (rate within 5 %, p50 and p99 within 10 %, CPU at most half)")
    return "\n".join(lines)


def _cells(own: Mapping[str, Sequence[Sample]]) -> list[str]:
    cells = []
    for field, _, least, most in _FIGURES:
        theirs = [float(getattr(sample, field)) for sample in own.get(PERF_ANALYZER, ())]
        ours = [float(getattr(sample, field)) for sample in own.get(NEREID, ())]
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=False) if other]
        if not ratios:
            cells += [_median_text(theirs), _median_text(ours), "-"]
            continue
        ratio = statistics.median(ratios)
        mark = "" if least <= ratio <= most else " *"
        cells += [
            _median_text(theirs),
            _median_text(ours),
            f"{ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f}){mark}",
        ]
    return cells


def _median_text(values: Sequence[float]) -> str:
    if not values:
        return "-"
    value = statistics.median(values)
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
