"""python -m benchmarks.simulation: measure, and write docs/simulation.json and .svg."""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.simulation.virtual_time import Clock

_DOCS = Path(__file__).parents[2] / "docs"
_EXECUTORS = (1, 4, 16, 64, 256)
_MODELS = (1, 10, 100, 500, 2000)
# Of the runs over models.
_FEW_EXECUTORS = 4


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="their median counts")
    parser.add_argument("--output", type=Path, default=_DOCS, help="a directory")
    given = parser.parse_args()
    clock = Clock()
    clock.install()
    # These import the scheduler, which binds its clocks then.
    measure = importlib.import_module("benchmarks.simulation.measure")
    plot = importlib.import_module("benchmarks.simulation.plot")
    size = importlib.import_module("benchmarks.simulation.mesh").Size

    batching = {"scheduler": "dynamic_batching { }", "max_batch_size": 8}
    sweeps = {
        "one model, by executors": [size(each, 1) for each in _EXECUTORS],
        "one model with dynamic batching, by executors": [
            size(each, 1, **batching) for each in _EXECUTORS
        ],
        f"{_FEW_EXECUTORS} executors, by models": [size(_FEW_EXECUTORS, each) for each in _MODELS],
        f"{_FEW_EXECUTORS} executors with a rate limiter, by models": [
            size(_FEW_EXECUTORS, each, limited=True) for each in _MODELS
        ],
    }

    def run(each: Any) -> tuple[float, float, float]:
        figures = measure.in_virtual_time(clock, measure.measure(each, given.requests, clock))
        assert isinstance(figures, tuple)
        return figures

    results: dict[str, list[dict[str, object]]] = {}
    for title, sizes in sweeps.items():
        results[title] = []
        for each in sizes:
            ratios = []
            for _ in range(given.rounds):
                # The smallest of its sweep right before: what else the machine does meets both.
                control = run(sizes[0])[0]
                cpu_us, utilisation, batch = run(each)
                ratios.append(cpu_us / control)
            lines = measure.in_virtual_time(clock, measure.count_lines(each, 2000))
            ratio = statistics.median(ratios)
            figures = measure.Figures(each, lines, ratio, utilisation, batch)
            results[title].append(figures.to_json())
            print(json.dumps(figures.to_json()), flush=True)
    (given.output / "simulation.json").write_text(json.dumps(results, indent=1) + "\n")
    (given.output / "simulation.svg").write_text(plot.draw(results))


if __name__ == "__main__":
    main()
