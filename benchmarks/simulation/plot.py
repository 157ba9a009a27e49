"""The figures as an SVG."""

from __future__ import annotations

from typing import Any

from benchmarks.figures import plot

_PANELS = (
    ("lines_per_request", "lines of the scheduler per request"),
    ("cpu_ratio", "CPU per request, by that of the smallest mesh"),
    ("utilisation", "utilisation of executors (ideal: 1)"),
)


def draw(results: dict[str, list[dict[str, Any]]]) -> str:
    """One panel for each figure; a line for each sweep, over the size that it varies."""
    largest: int = max(_varied(rows)[-1] for rows in results.values())
    axis = plot.Axis("executors, models, or schedulers", 1, largest, (1, 10, 100, 1000))
    panels = [
        plot.Panel(title, axis, {name: _points(rows, key) for name, rows in results.items()}, {})
        for key, title in _PANELS
    ]
    return plot.draw(panels, list(results))


def _points(rows: list[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(size, row[key]) for size, row in zip(_varied(rows), rows, strict=True)]


def _varied(rows: list[dict[str, Any]]) -> list[int]:
    sizes = ("models", "schedulers")
    key = next((key for key in sizes if rows[0][key] != rows[-1][key]), "executors")
    return [row[key] for row in rows]
