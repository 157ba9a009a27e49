"""python -m benchmarks.autoscaling: rehearse autoscaling under several loads.

The command writes docs/figures/autoscaling.json, and a plot of each load in the same folder.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

from benchmarks.autoscaling import load, plot
from benchmarks.simulation.virtual_time import Clock

_FIGURES = Path(__file__).parents[2] / "docs" / "figures"
_LOADS: dict[str, load.Rate] = {
    "diurnal": load.diurnal,
    "bursty": load.bursty,
    "sparse": load.sparse,
}


def main() -> None:
    """Rehearse, and write the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscaling", description=__doc__)
    parser.add_argument("--load", action="append", choices=_LOADS, help="by default all")
    parser.add_argument(
        "--recorded", type=Path, help="a CSV of seconds and requests per second, instead"
    )
    parser.add_argument("--execution-s", type=float, default=0.4, help="of one request")
    parser.add_argument("--start-s", type=float, default=40.0, help="of a pod, with its models")
    parser.add_argument("--most", type=int, default=8, help="replicas")
    parser.add_argument("--queue-time-us", type=float, default=100_000, help="target")
    parser.add_argument("--busy-ratio", type=float, default=0.7, help="target")
    parser.add_argument("--demand", type=float, default=4.0, help="target, for each replica")
    parser.add_argument("--output", type=Path, default=_FIGURES, help="a directory")
    given = parser.parse_args()
    clock = Clock()
    clock.install()
    # These import the scheduler, which binds its clocks then.
    rehearsal = importlib.import_module("benchmarks.autoscaling.rehearsal")
    in_virtual_time = importlib.import_module("benchmarks.simulation.measure").in_virtual_time

    targets = rehearsal.Targets
    all_three = targets(given.queue_time_us, given.busy_ratio, given.demand)
    ways = [
        rehearsal.Scaling("fixed", None, given.most, given.most),
        rehearsal.Scaling("queue time alone", targets(given.queue_time_us), 1, given.most),
        rehearsal.Scaling("queue time, busy instances, demand", all_three, 1, given.most),
        rehearsal.Scaling("the same, from zero", all_three, 0, given.most),
    ]
    loads = {name: (_LOADS[name], load.DAY_S) for name in given.load or _LOADS}
    if given.recorded is not None:
        loads = {"recorded": load.recorded(given.recorded)}
    results: dict[str, dict[str, Any]] = {}
    for name, (rate, until_s) in loads.items():
        results[name] = {}
        for way in ways:
            work = rehearsal.rehearse(
                rate, until_s, way, start_s=given.start_s, execution_s=given.execution_s
            )
            found = results[name][way.name] = in_virtual_time(clock, work).to_json()
            shown = {key: value for key, value in found.items() if key != "series"}
            print(name, way.name, json.dumps(shown), flush=True)
        (given.output / f"autoscaling-{name}.svg").write_text(plot.draw(results[name]))
    (given.output / "autoscaling.json").write_text(_dump(results))


def _dump(results: dict[str, dict[str, Any]]) -> str:
    """Return JSON, with a line for each run."""
    loads = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f" {json.dumps(way)}: {json.dumps(run)}" for way, run in runs.items())
        + "\n}"
        for name, runs in results.items()
    ]
    return "{" + ",\n".join(loads) + "}\n"


if __name__ == "__main__":
    main()
