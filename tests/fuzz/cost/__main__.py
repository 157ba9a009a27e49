"""Looks for inputs that cost too much: python -m tests.fuzz.cost --total-seconds 600 [target ...]

The targets share the seconds. What is found is printed, as what to put into its table of inputs
once it is mended.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys

from tests.fuzz.cost.growing import Target, examine
from tests.fuzz.cost.search import search
from tests.fuzz.cost.targets import TARGETS


def _try(target: Target, seconds: float, seed: int) -> bool:
    """Whether nothing was found."""
    known = [examine(target, growing, target.largest_bytes) for growing in target.inputs]
    found = [each for each in known if each is not None]
    excess = search(target, random.Random(seed), seconds)
    if excess is not None:
        found.append(excess)
    for each in found:
        print(f"{each}\n    {each.growing!r}")  # noqa: T201 (a tool)
    print(f"{target.name}: {len(found)} found, seed {seed}", flush=True)  # noqa: T201
    return not found


def main() -> int:
    names = {target.name: target for target in TARGETS}
    parser = argparse.ArgumentParser(prog="tests.fuzz.cost", description="Fuzzes by cost.")
    parser.add_argument("targets", nargs="*", metavar="target", help=", ".join(names))
    parser.add_argument("--total-seconds", type=float, default=600, help="for all targets")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args()
    unknown = set(given.targets) - set(names)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    # Handlers that fail on purpose would be reported a million times.
    logging.disable()
    chosen = [names[name] for name in given.targets or names]
    good = [_try(target, given.total_seconds / len(chosen), given.seed) for target in chosen]
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
