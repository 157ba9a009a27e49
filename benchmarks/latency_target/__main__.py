"""python -m benchmarks.latency_target: rehearse a latency target.

The command writes docs/figures/latency-target.json and .svg. There are two rehearsals. The first
compares a target with the best fixed setting. An exhaustive search finds this setting, which has
the highest goodput over all phases together. The second rehearsal has a target that is shorter than
the execution of one request.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
from pathlib import Path
from typing import Any

from benchmarks.latency_target import load, plot
from benchmarks.simulation.virtual_time import Clock

_FIGURES = Path(__file__).parents[2] / "docs" / "figures"
_SIZES = (4, 8, 12, 16, 20, 24, 32, 64)
_DELAYS_US = (0, 2000, 5000, 10_000, 20_000)
# Longer than any request takes there.
_ANY_S = 0.5
# Bounds of the queue; 0 means none.
_BOUNDS = (0, 16, 32, 64)


def main() -> None:
    """Rehearse, and write the files."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.latency_target", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each phase")
    parser.add_argument("--target-us", type=int, default=50_000)
    parser.add_argument("--unreachable-us", type=int, default=8000)
    add = parser.add_argument
    add("--size", action="append", type=int, help=f"to search, by default {_SIZES}")
    add("--delay-us", action="append", type=int, help=f"likewise, {_DELAYS_US}")
    add("--max-queue-size", action="append", type=int, help=f"likewise, {_BOUNDS}; 0: none")
    parser.add_argument("--output", type=Path, default=_FIGURES, help="a directory")
    given = parser.parse_args()
    clock = Clock()
    clock.install()
    # These import the scheduler, which binds its clocks then.
    rehearsal = importlib.import_module("benchmarks.latency_target.rehearsal")
    in_virtual_time = importlib.import_module("benchmarks.simulation.measure").in_virtual_time
    setting_of = rehearsal.Setting
    target_s = given.target_us / 1e6

    def run(setting: Any) -> Any:
        return in_virtual_time(clock, rehearsal.rehearse(setting, load.phases_of(given.seconds)))

    searched = []
    grid = (given.size or _SIZES, given.delay_us or _DELAYS_US, given.max_queue_size or _BOUNDS)
    for size, delay_us, bound in itertools.product(*grid):
        fixed = setting_of(size=size, delay_us=delay_us, max_queue_size=bound)
        figures = run(fixed).figures(target_s)
        searched.append((sum(figure["goodput"] for figure in figures.values()), fixed, figures))
        print(size, delay_us, bound, round(searched[-1][0], 1), flush=True)
    _, best, _ = max(searched, key=lambda candidate: candidate[0])
    results: dict[str, Any] = {"target_us": given.target_us}
    runs = {
        "target": setting_of(target_us=given.target_us),
        "best fixed setting": best,
    }
    for name, setting in runs.items():
        outcome = run(setting)
        results[name] = {
            "phases": outcome.figures(target_s),
            "series": outcome.series(target_s),
        }
    results["best fixed setting"] |= {
        "size": best.size,
        "delay_us": best.delay_us,
        "max_queue_size": best.max_queue_size,
    }
    results["searched"] = len(searched)
    # The best of the searched settings by phase, whichever setting that is.
    results["best of each phase"] = {
        name: max(figures[name]["goodput"] for *_, figures in searched)
        for name in results["target"]["phases"]
    }
    outcome = run(setting_of(target_us=given.unreachable_us))
    results["unreachable"] = {
        "target_us": given.unreachable_us,
        "reachable": outcome.reachable,
        "held_us": outcome.held_us,
        # Goodput is all that was served.
        "phases": outcome.figures(_ANY_S),
    }
    for name, result in results.items():
        if isinstance(result, dict):
            shown = {key: value for key, value in result.items() if key != "series"}
            print(name, json.dumps(shown, indent=1), flush=True)
    (given.output / "latency-target.json").write_text(dump(results))
    (given.output / "latency-target.svg").write_text(plot.draw(results))


def dump(results: dict[str, Any]) -> str:
    """Return JSON, with a line for each part."""
    parts = [f"{json.dumps(name)}: {json.dumps(result)}" for name, result in results.items()]
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    main()
