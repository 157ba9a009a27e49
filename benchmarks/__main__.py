"""Entry point ``python -m benchmarks``: measures the models one after the other, writes JSON.

Only this module and the entry points of the other benchmarks read argv.
"""

import argparse
import datetime as dt
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnxruntime

from benchmarks import load, process
from benchmarks.failure import BenchError
from benchmarks.figures import table
from benchmarks.figures.aims import outcomes
from benchmarks.figures.ratios import OURS, over_bare, ratios
from benchmarks.figures.samples import BARE, Samples, document, dump
from benchmarks.models import registry
from benchmarks.models.workload import Workload
from benchmarks.peers import environment, native, nereid, start, triton
from benchmarks.run import Plan, Run

_PEERS = (*start.SERVERS, BARE)
_VARIANT = "--nereid-variant"
_TREE = "--nereid-tree"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Nereid beside Triton's Python backend, MLServer, LitServe and the bare loop",
    )
    parser.add_argument(
        "--model",
        type=_models,
        default=["mlp"],
        metavar="NAME,...",
        help=f"all, or of {', '.join(registry.NAMES)} (default: mlp)",
    )
    parser.add_argument(
        "--seconds", type=float, help="of load in each cell and round (default: each model's own)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", metavar="PEER", help=", ".join(_PEERS))
    parser.add_argument("--without", action="append", metavar="PEER", default=[])
    parser.add_argument("--protocol", action="append", choices=load.PROTOCOLS, default=[])
    parser.add_argument(
        "--concurrency", type=_concurrencies, default=[], help="default: each model's own"
    )
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--triton-venv", type=Path, default=triton.DEFAULT_VENV)
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    parser.add_argument(
        _VARIANT,
        type=_variant,
        action="append",
        default=[],
        metavar="NAME=FLAGS",
        help="one more peer, nereid-NAME: Nereid with these flags beside --nereid-flags",
    )
    parser.add_argument(
        _TREE,
        type=_tree,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the peer nereid-NAME runs from this copy of the project (scripts/compiled_tree.py)",
    )
    parser.add_argument(
        "--models-dir",
        type=Path,
        default=environment.CACHE / "models",
        help="where models are kept",
    )
    parser.add_argument("--work-dir", type=Path, help="keep repositories and logs there")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1 or (arguments.seconds is not None and arguments.seconds <= 0):
        parser.error("--rounds and --seconds must be positive")
    arguments.variants = _variants(arguments)
    peers = [*arguments.variants, *_PEERS[1:]]
    unknown = {*(arguments.only or ()), *arguments.without} - {*peers}
    if unknown:
        parser.error(f"no such peer: {', '.join(sorted(unknown))} (there are {', '.join(peers)})")
    wanted = arguments.only or [name for name in peers if name != native.NAME or native.is_given()]
    arguments.peers = [name for name in peers if name in wanted and name not in arguments.without]
    return arguments


def _concurrencies(text: str) -> list[int]:
    values = [int(part) for part in text.split(",") if part.isdecimal()]
    if len(values) != text.count(",") + 1 or min(values) < 1:
        raise argparse.ArgumentTypeError("positive integers joined by commas are expected")
    return values


def _models(text: str) -> list[str]:
    names = list(registry.NAMES) if text == "all" else text.split(",")
    unknown = [name for name in names if name not in registry.NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such model: {', '.join(unknown)}")
    return names


def _variant(text: str) -> tuple[str, list[str]]:
    """Parse a peer's name and its flags."""
    name, equals, flags = text.partition("=")
    if not equals or not name.replace("-", "").isalnum():
        raise argparse.ArgumentTypeError("NAME=FLAGS is expected")
    return f"{OURS}-{name}", shlex.split(flags)


def _tree(text: str) -> tuple[str, Path]:
    """Parse a peer's name and its tree."""
    name, equals, path = text.partition("=")
    if not equals or not name.replace("-", "").isalnum():
        raise argparse.ArgumentTypeError("NAME=PATH is expected")
    tree = Path(path).resolve()
    if not (tree / "nereid" / "cli").is_dir():
        raise argparse.ArgumentTypeError(f"{tree} is no copy of the project")
    return f"{OURS}-{name}", tree


def _variants(arguments: argparse.Namespace) -> dict[str, nereid.Variant]:
    """Return all peers that are Nereid; a name may have flags, a tree, or both."""
    flags, trees = dict(arguments.nereid_variant), dict(arguments.nereid_tree)
    common = arguments.nereid_flags
    return {
        name: nereid.Variant([*common, *flags.get(name, ())], trees.get(name))
        for name in dict.fromkeys((OURS, *flags, *trees))
    }


def _about(arguments: argparse.Namespace, versions: dict[str, str]) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "?")
    variants = {
        name: variant for name, variant in arguments.variants.items() if name in arguments.peers
    }
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": _commit(),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "load_at_start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "onnxruntime": {OURS: onnxruntime.__version__, **versions},
        "seconds": arguments.seconds or Workload.seconds,
        "rounds": arguments.rounds,
        "nereid_flags": {name: shlex.join(variant.flags) for name, variant in variants.items()},
        "nereid_versions": {
            name: nereid.version(variant.tree) for name, variant in variants.items()
        },
        "nereid_trees": [name for name, variant in variants.items() if variant.tree],
    }


def _commit() -> str:
    ran = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout.strip() or "?"


def _run(arguments: argparse.Namespace, work: Path) -> int:
    options = start.Options(arguments.triton_venv, arguments.variants)
    load.require_clients(arguments.protocol or load.PROTOCOLS)
    about = _about(arguments, start.install(arguments.peers, options))
    print(" ".join(f"{key}={value}" for key, value in about.items()), flush=True)
    if about["load_at_start"] > 0.5:
        print(f"note: the machine is not idle (load {about['load_at_start']:.1f})", flush=True)
    plan = Plan(
        peers=arguments.peers,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        protocols=arguments.protocol,
        concurrency=arguments.concurrency,
        options=options,
    )
    samples: Samples = {}
    failed = 0
    for name in arguments.model:
        try:
            _run_model(name, plan, arguments.models_dir, work / name, samples)
        except BenchError as error:
            # The other models are still worth measuring.
            print(f"benchmarks: {name}: {error}", file=sys.stderr, flush=True)
            failed += 1
        finally:
            if arguments.json and samples:
                arguments.json.write_text(dump(document(samples, about)))
    _print(samples)
    return 1 if failed else 0


def _run_model(name: str, plan: Plan, models: Path, work: Path, samples: Samples) -> None:
    with ExitStack() as stack:
        workload = registry.make(name, models)
        try:
            Run(workload, plan, work, stack, samples).run()
        except KeyboardInterrupt:
            print("benchmarks: interrupted, stopping the servers", file=sys.stderr)
            raise


def _print(samples: Samples) -> None:
    if samples:
        print("\n" + table.table(samples))
    if found := [*ratios(samples), *over_bare(samples)]:
        print("\n" + table.ratio_table(found))
    if aims := outcomes(samples):
        print("\n" + table.outcome_table(aims))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    arguments = _arguments(argv)
    process.interrupt_on_signals()
    with ExitStack() as stack:
        if arguments.work_dir is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nereid-bench-")))
        else:
            work = arguments.work_dir.resolve()
        try:
            return _run(arguments, work)
        except BenchError as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            process.ignore_signals()


if __name__ == "__main__":
    sys.exit(main())
