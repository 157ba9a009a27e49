"""python -m benchmarks.simulation: measure, and write docs/figures/simulation.json and .svg."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

from benchmarks.simulation import plot
from benchmarks.simulation.virtual_time import Clock

_FIGURES = Path(__file__).parents[2] / "docs" / "figures"
_EXECUTORS = (1, 4, 16, 64, 256)
_MODELS = (1, 10, 100, 500, 2000)
# Number of executors in the runs over models, and over schedulers.
_FEW_EXECUTORS = 4
_SCHEDULERS = (1, 2, 4)
_SHARED_MODELS = 64


def main() -> None:
    """Measure, and write the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--requests", type=int, default=3000, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=9, help="the median of their ratios counts")
    parser.add_argument("--output", type=Path, default=_FIGURES, help="a directory")
    given = parser.parse_args()
    clock = Clock()
    clock.install()
    # These import the scheduler, which binds its clocks then.
    measure = importlib.import_module("benchmarks.simulation.measure")
    size = importlib.import_module("benchmarks.simulation.mesh").Size

    batching = {"scheduler": "dynamic_batching { }", "max_batch_size": 8}
    sweeps = {
        "one model, by executors": [size(number, 1) for number in _EXECUTORS],
        "one model with dynamic batching, by executors": [
            size(number, 1, **batching) for number in _EXECUTORS
        ],
        f"{_FEW_EXECUTORS} executors, by models": [
            size(_FEW_EXECUTORS, number) for number in _MODELS
        ],
        f"{_FEW_EXECUTORS} executors, by models of which one is asked": [
            size(_FEW_EXECUTORS, number, asked=1) for number in _MODELS
        ],
        f"{_FEW_EXECUTORS} executors with a rate limiter, by models": [
            size(_FEW_EXECUTORS, number, limited=True) for number in _MODELS
        ],
        f"{_FEW_EXECUTORS} executors and {_SHARED_MODELS} models, by schedulers": [
            size(_FEW_EXECUTORS, _SHARED_MODELS, schedulers=number) for number in _SCHEDULERS
        ],
    }

    results: dict[str, list[dict[str, object]]] = {}
    for title, sizes in sweeps.items():
        results[title] = []
        for simulated in sizes:
            work = measure.measure(simulated, sizes[0], clock, given.requests, given.rounds)
            figures = measure.in_virtual_time(clock, work)
            lines = measure.in_virtual_time(clock, measure.count_lines(simulated, 2000))
            results[title].append(measure.Figures(simulated, lines, *figures).to_json())
            print(json.dumps(results[title][-1]), flush=True)
        (given.output / "simulation.json").write_text(json.dumps(results, indent=1) + "\n")
        (given.output / "simulation.svg").write_text(plot.draw(results))


if __name__ == "__main__":
    main()
