"""python -m tests.simulation: simulate meshes, and say what should not have happened."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import pickle
import random
import sys
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.simulation.virtual_time import Clock
from tests.simulation.processes import MeshLoop
from tests.simulation.randomness import Randomness, require_fixed_hashes
from tests.simulation.wall_clocks import WallClocks

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--minutes", type=float, default=1.0, help="of virtual time, for each")
    parser.add_argument("--story", type=int, metavar="REQUEST", help="print what befell it")
    parser.add_argument("--bug", default="", help="have this one (tests/simulation/bugs.py)")
    parser.add_argument("--json", action="store_true", help="print each outcome as a line of JSON")
    parser.add_argument("--first", action="store_true", help="end when one has found something")
    parser.add_argument("--clocks", action="store_true", help="set all clocks by hours at times")
    given = parser.parse_args()
    require_fixed_hashes()
    logging.getLogger("nereid").setLevel(logging.WARNING)
    logging.getLogger().addHandler(logging.NullHandler())
    clock, wall_clocks, randomness = Clock(), WallClocks(), Randomness()
    clock.install()
    wall_clocks.install()
    randomness.install()
    # It imports the services, which bind their clocks then.
    mesh = importlib.import_module("tests.simulation.mesh")

    def simulate(seed: int) -> Any:
        began_s = time.process_time()
        randomness.start(seed)
        choices = random.Random(seed)
        loop = MeshLoop(clock, choices)
        if given.clocks:
            wall_clocks.start(loop, seed)
        options = {"bug": given.bug, "story": given.story}
        work = mesh.simulate(clock, choices, seed, given.minutes * 60, **options)
        outcome = loop.run_until_complete(work)
        return outcome, time.process_time() - began_s, wall_clocks.wrong

    found, cpu_s, simulated_s, requests = 0, 0.0, 0.0, 0
    totals: dict[str, Counter[str]] = {
        "ends": Counter(),
        "disruptions": Counter(),
        "events": Counter(),
    }
    for seed in range(given.seed, given.seed + given.seeds):
        outcome, took_s, wrong_times = _in_child(partial(simulate, seed))
        cpu_s += took_s
        simulated_s += outcome.simulated_s
        requests += outcome.requests
        for name, total in totals.items():
            total.update(getattr(outcome, name))
        if given.json:
            print(json.dumps({**vars(outcome), "wrong_times": wrong_times}), flush=True)
            if outcome.violations and given.first:
                break
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
            if given.first:
                break
    if given.json:
        return
    rate = simulated_s / 60 / cpu_s
    print(f"{simulated_s / 3600:.2f} hours, {requests} requests")
    print(f"{rate:.2f} mesh hours per minute of CPU")
    for name, total in totals.items():
        print(f"{name}:", ", ".join(f"{kind} {count}" for kind, count in sorted(total.items())))
    print(f"{found} of {given.seeds} seeds found something")
    sys.exit(found > 0)


def _in_child(work: Callable[[], Any]) -> Any:
    """What it returns, in a process of its own: each simulation begins in the same state."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        code = 1
        try:
            with os.fdopen(writer, "wb") as file:
                pickle.dump(work(), file)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        result = file.read()
    os.waitpid(child, 0)
    if not result:
        sys.exit(1)
    return pickle.loads(result)


if __name__ == "__main__":
    main()
