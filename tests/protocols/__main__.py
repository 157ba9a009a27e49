"""python -m tests.protocols: explore the protocols deeper than a test does.

For each world: every schedule with 0, 1, 2, ... reorderings until its time is over, then random
ones for as long. Prints a row of a table for each, and the shortest story of what fails.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.protocols.explorer import explore, explore_random

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.protocols.explorer import Exploration, World

_DEEPEST = 100


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.protocols", description=__doc__)
    parser.add_argument("--protocol", default="", help="only those whose module's name has this")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each world, each way")
    parser.add_argument("--seed", type=int, default=0, help="the first of the random schedules")
    given = parser.parse_args()
    # What the worlds break on purpose is logged as what it is.
    logging.disable(logging.CRITICAL)
    print("| Protocol | World | Reorderings, all | Schedules | Random ones | Seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    failed = False
    for protocol, name, world in _worlds(given.protocol):
        found = explore(world, reorderings=_DEEPEST, limit_s=given.seconds)
        sampled = explore_random(world, seeds=_seeds(given.seed, given.seconds))
        seconds = found.seconds + sampled.seconds
        cells = (
            protocol,
            name,
            "any number" if found.complete else found.bound,
            f"{found.runs:,}",
            f"{sampled.runs:,}",
            f"{seconds:.0f}",
        )
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        for each in (found, sampled):
            failed |= _print_failure(each)
    sys.exit(failed)


def _worlds(part: str) -> Iterator[tuple[str, str, Callable[[], World]]]:
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        worlds = vars(importlib.import_module(f"tests.protocols.{path.stem}")).get("WORLDS", {})
        if part in path.stem:
            protocol = path.stem.removeprefix("test_").replace("_", " ")
            yield from ((protocol, name, world) for name, world in worlds.items())


def _seeds(first: int, seconds: float) -> Iterator[int]:
    end = time.monotonic() + seconds
    return itertools.takewhile(lambda _: time.monotonic() < end, itertools.count(first))


def _print_failure(found: Exploration) -> bool:
    if found.failure is not None:
        print(found.failure, "" if found.failure.seed is None else f"(seed {found.failure.seed})")
    return found.failure is not None


if __name__ == "__main__":
    main()
