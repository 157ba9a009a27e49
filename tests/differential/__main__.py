"""Compare for longer, by seeds, or plant defects that the comparison has to find.

usage: python -m tests.differential [--minutes M] [--seed N] [--defects]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.differential.comparison import all_cases, run
from tests.differential.defects import DEFECTS, run_with_defect

MODES = (
    ("--join=scheduler",),
    ("--join=none",),
    ("--join=none", "--gateways=2"),
    ("--grpc-engine=grpcio",),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to compare")
    parser.add_argument("--seed", type=int, default=1, help="of the first requests")
    parser.add_argument("--defects", action="store_true", help="plant each defect instead")
    arguments = parser.parse_args()
    if arguments.defects:
        return _plant_all(arguments.seed)
    stop_at = time.monotonic() + arguments.minutes * 60
    seed, differing = arguments.seed, 0
    while time.monotonic() < stop_at:
        for mode in MODES:
            with tempfile.TemporaryDirectory() as directory:
                report = run(Path(directory), all_cases(seed), seed, *mode)
            print(f"seed {seed}, {' '.join(mode)}: {report}", *report.differences, sep="\n  ")
            differing += len(report.differences)
        seed += 1
    return differing > 0


def _plant_all(seed: int) -> int:
    missed = 0
    for defect in DEFECTS:
        with tempfile.TemporaryDirectory() as directory:
            report = run_with_defect(Path(directory), defect, seed)
        found = report.differences[:1]
        print(f"{defect}: {report}", *found, sep="\n  ")
        missed += not found
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
