"""Plot of the figures as an SVG."""

import math
from typing import Any

from benchmarks.figures import plot

_PANELS = (
    ("goodput_per_capacity", "served in time, by capacity", False),
    ("p99_ms", "p99 of served requests, ms", True),
    ("offered_per_capacity", "offered, by capacity", False),
)
_MAX_STEP_S = 2


def draw(runs: dict[str, dict[str, Any]]) -> str:
    """Return an SVG with a panel for each figure over time, and a line for each run."""
    panels = [
        plot.Panel(
            title,
            plot.Axis("seconds", lowest=0),
            plot.Axis(logarithmic=logarithmic, lowest=None if logarithmic else 0),
            {name: points(run, key) for name, run in runs.items()},
        )
        for key, title, logarithmic in _PANELS
    ]
    return plot.draw(panels, columns=3)


def points(run: dict[str, Any], key: str) -> list[tuple[float, float]]:
    """Return the points of a figure, with a gap where nothing was measured."""
    points: list[tuple[float, float]] = []
    for second in run["seconds"]:
        if second[key] is None:
            continue
        if points and second["second"] - points[-1][0] > _MAX_STEP_S:
            points.append((second["second"], math.nan))
        points.append((second["second"], second[key]))
    return points
