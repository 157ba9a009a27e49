"""Plot of the figures as an SVG."""

from __future__ import annotations

from typing import Any

from benchmarks.figures import plot

# Sizes that the sweeps vary, in the order of the rows.
_SIZES = ("executors", "models", "schedulers")
_FIGURES = (
    ("lines_per_request", "lines of the scheduler per request"),
    ("cpu_ratio", "CPU per request, by that of the smallest mesh"),
    ("utilisation", "utilisation of executors (ideal: 1)"),
)


def draw(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return the SVG."""
    return plot.draw(panels(results), columns=len(_FIGURES))


def panels(results: dict[str, list[dict[str, Any]]]) -> list[plot.Panel]:
    """Return a panel for each varied size and each figure, with a line for each sweep."""
    found = [
        plot.Panel(
            title,
            plot.Axis(size, logarithmic=True, ticks=_values(results, size)),
            plot.Axis(lowest=0),
            {
                name: [(row[size], row[key]) for row in rows]
                for name, rows in results.items()
                if _varied(rows) == size
            },
        )
        for size in _SIZES
        for key, title in _FIGURES
    ]
    return [panel for panel in found if panel.lines]


def _values(results: dict[str, list[dict[str, Any]]], size: str) -> list[int]:
    return sorted({row[size] for rows in results.values() if _varied(rows) == size for row in rows})


def _varied(rows: list[dict[str, Any]]) -> str:
    return next((size for size in _SIZES if rows[0][size] != rows[-1][size]), _SIZES[0])
