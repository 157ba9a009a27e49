"""Plot of the rehearsal as an SVG."""

from __future__ import annotations

from typing import Any

from benchmarks.figures import plot

_RUNS = ("target", "best fixed setting")
_OFFERED = "offered"
_PANELS = (
    ("goodput", "requests in time, per second"),
    ("p99_ms", "p99 of served requests, ms"),
    ("batch_size", "largest batch, rows"),
    ("delay_ms", "delay, ms"),
)


def draw(results: dict[str, Any]) -> str:
    """Return an SVG: panels over time, with the offered load and a line for each run."""
    panels = []
    for key, title in _PANELS:
        lines = {name: _points(results[name]["series"], key) for name in _RUNS}
        if key == "goodput":
            lines = {_OFFERED: _points(results[_RUNS[0]]["series"], _OFFERED), **lines}
        panels.append(
            plot.Panel(
                title,
                plot.Axis("seconds", lowest=0),
                plot.Axis(logarithmic=key == "p99_ms", lowest=None if key == "p99_ms" else 0),
                lines,
            )
        )
    return plot.draw(panels, columns=2)


def _points(series: dict[str, list[float]], key: str) -> list[tuple[float, float]]:
    return list(zip(series["second"], series[key], strict=True))
