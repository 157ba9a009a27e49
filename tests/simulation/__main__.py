"""python -m tests.simulation: simulate meshes, and say what should not have happened."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import random
import sys
import time
from collections import Counter
from typing import Any

from benchmarks.simulation.virtual_time import Clock
from tests.simulation.processes import MeshLoop
from tests.simulation.randomness import Randomness, require_fixed_hashes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--minutes", type=float, default=1.0, help="of virtual time, for each")
    parser.add_argument("--story", type=int, metavar="REQUEST", help="print what befell it")
    parser.add_argument("--bug", default="", help="give executors this one (tests/simulation/bugs)")
    parser.add_argument("--json", action="store_true", help="print each outcome as a line of JSON")
    given = parser.parse_args()
    require_fixed_hashes()
    logging.getLogger("nereid").setLevel(logging.WARNING)
    logging.getLogger().addHandler(logging.NullHandler())
    clock, randomness = Clock(), Randomness()
    clock.install()
    randomness.install()
    # It imports the services, which bind their clocks then.
    mesh = importlib.import_module("tests.simulation.mesh")
    found, cpu_s, simulated_s, requests = 0, 0.0, 0.0, 0
    totals: dict[str, Counter[str]] = {
        "ends": Counter(),
        "disruptions": Counter(),
        "events": Counter(),
    }
    for seed in range(given.seed, given.seed + given.seeds):
        began_s = time.process_time()
        clock.now_ns = 1
        randomness.start(seed)
        choices = random.Random(seed)
        loop = MeshLoop(clock, choices)
        work = mesh.simulate(
            clock, choices, seed, given.minutes * 60, bug=given.bug, story=given.story
        )
        outcome: Any = loop.run_until_complete(work)
        loop.close()
        cpu_s += time.process_time() - began_s
        simulated_s += outcome.simulated_s
        requests += outcome.requests
        for name, total in totals.items():
            total.update(getattr(outcome, name))
        if given.json:
            print(json.dumps(vars(outcome)), flush=True)
            continue
        if given.seeds == 1:
            print(outcome.shape)
            print("digest", outcome.digest)
        for line in outcome.story:
            print(line)
        if outcome.violations:
            found += 1
            again = f"python -m tests.simulation --seed {seed} --minutes {given.minutes:g}"
            print(f"seed {seed}: {again}", *outcome.violations, sep="\n  ", flush=True)
    if given.json:
        return
    rate = simulated_s / 60 / cpu_s
    print(f"{simulated_s / 3600:.2f} hours, {requests} requests")
    print(f"{rate:.2f} mesh hours per minute of CPU")
    for name, total in totals.items():
        print(f"{name}:", ", ".join(f"{kind} {count}" for kind, count in sorted(total.items())))
    print(f"{found} of {given.seeds} seeds found something")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
