"""The figures as an SVG."""

from typing import Any

from benchmarks.figures import plot

_PANELS = (
    ("goodput_per_capacity", "served in time, by capacity"),
    ("p99_ms", "p99 of served requests (ms)"),
    ("offered_per_capacity", "offered, by capacity"),
)


def draw(runs: dict[str, dict[str, Any]]) -> str:
    """One panel for each figure over time; a line for each run."""
    last = max(run["seconds"][-1]["second"] for run in runs.values())
    ticks = range(0, last + 1, max(1, last // 5))
    axis = plot.Axis("seconds", 0, max(1, last), ticks, linear=True)
    panels = [
        plot.Panel(title, axis, {name: _points(run, key) for name, run in runs.items()}, {})
        for key, title in _PANELS
    ]
    return plot.draw(panels, list(runs))


def _points(run: dict[str, Any], key: str) -> list[tuple[float, float]]:
    return [(each["second"], each[key]) for each in run["seconds"] if each[key] is not None]
