"""Entry point, ``python -m benchmarks.real_models``: models of real sizes.

Nereid, a native Triton and the loop without a server are measured in turns. Rates are meaningful
only on a quiet machine. CPU time per inference can also be compared on a busy machine.
"""

import argparse
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.peers import native, triton
from benchmarks.real_models import gpt, images, sentences
from benchmarks.real_models.bare import BareLoop
from benchmarks.real_models.served import Served
from benchmarks.real_models.subject import Subject
from benchmarks.real_models.used import Used

_BATCH_SIZES = (1, 2, 4, 8, 16)
# Number of turns at each batch size of the bare loop.
_LOOKS = 5
_WARM_S = 4.0
_NEREID = "nereid"
_HEADS = (
    ("model", "in flight", "batch", "infer/s", "x peer", "x bare", "CPU x bare", "all CPU x peer"),
    ("---", *["---:"] * 7),
)


def _best_batches(bare: BareLoop, counts: Sequence[int], seconds: float) -> dict[int, int]:
    """Return the bare loop's best batch that so many requests in flight could fill."""
    sizes = [size for size in _BATCH_SIZES if size <= max(counts)]
    costs: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(_LOOKS):
        for size in sizes:
            costs[size].append(bare.run(size, seconds / _LOOKS).model_cpu_ms)
    found = {size: statistics.median(cost) for size, cost in costs.items()}
    costs_text = ", ".join(f"{size}: {cost:.2f}" for size, cost in found.items())
    print(f"bare loop, CPU ms of an inference by batch size: {costs_text}", flush=True)
    return {count: min((s for s in sizes if s <= count), key=found.__getitem__) for count in counts}


def _measure(subject: Subject, work: Path, arguments: argparse.Namespace) -> None:
    peers = [_NEREID, *(peer for peer in subject.peers if _is_there(peer, arguments))]
    with ExitStack() as stack:
        bare = BareLoop(subject, 1)
        stack.callback(bare.close)
        served: dict[str, Served] = {}
        for peer in peers:
            served[peer] = Served(
                peer, subject, work, arguments.nereid_flags, arguments.triton_venv
            )
            stack.callback(served[peer].close)
            # Nereid tries batches of several sizes at first.
            served[peer].run(max(arguments.concurrency), _WARM_S)
        print(f"\n{subject.name}: {', '.join(peers)}", flush=True)
        counts = arguments.concurrency
        best = _best_batches(bare, counts, arguments.seconds)
        for count in counts:
            rounds = []
            for _ in range(arguments.rounds):
                used = {"bare": bare.run(best[count], arguments.seconds)}
                used |= {peer: one.run(count, arguments.seconds) for peer, one in served.items()}
                rounds.append(used)
            _print_row(subject.name, count, rounds, peers[1] if peers[1:] else "")


def _is_there(peer: str, arguments: argparse.Namespace) -> bool:
    return native.is_given() if peer == native.NAME else bool(arguments.triton_venv.exists())


def _print_row(name: str, count: int, rounds: Sequence[dict[str, Used]], peer: str) -> None:
    ours = [used[_NEREID] for used in rounds]
    cells = [
        name,
        str(count),
        f"{statistics.median(used.batch for used in ours):.1f}",
        f"{statistics.median(used.rate for used in ours):.1f}",
        _ratios([used[_NEREID].rate / used[peer].rate for used in rounds]) if peer else "-",
        _ratios([used[_NEREID].rate / used["bare"].rate for used in rounds]),
        _ratios([used[_NEREID].model_cpu_ms / used["bare"].model_cpu_ms for used in rounds]),
        _ratios([used[_NEREID].cpu_ms / used[peer].cpu_ms for used in rounds]) if peer else "-",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def _ratios(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.2f}-{max(ratios):.2f})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_models", description=__doc__)
    parser.add_argument("--only", default="", help="names of models, with commas between")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument(
        "--concurrency",
        type=lambda text: [int(number) for number in text.split(",")],
        default=[1, 4, 16],
    )
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    parser.add_argument("--triton-venv", type=Path, default=triton.DEFAULT_VENV)
    parser.add_argument("--models", type=Path, default=Path("models"), help="kept between runs")
    arguments = parser.parse_args(argv)
    found: list[Subject] = [
        *sentences.subjects(arguments.models),
        *images.subjects(arguments.models),
        *gpt.subjects(arguments.models),
    ]
    names = arguments.only.split(",") if arguments.only else [subject.name for subject in found]
    if unknown := {*names} - {subject.name for subject in found}:
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    for line in _HEADS:
        print(f"| {' | '.join(line)} |")
    with tempfile.TemporaryDirectory(prefix="nereid-bench-") as directory:
        for subject in found:
            if subject.name in names:
                _measure(subject, Path(directory), arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
