"""Draws the runs of one load as an SVG."""

from __future__ import annotations

from typing import Any

from benchmarks.figures import plot

_OFFERED = "requests per second"
_PANELS = (
    ("replicas", "replicas"),
    ("queue_time_s", "mean queue time, s"),
    ("pod_hours", "pod hours so far"),
)


def draw(runs: dict[str, dict[str, Any]]) -> str:
    """Return an SVG: panels over time, with the offered load and a line for each way of scaling."""
    offered = next(iter(runs.values()))["series"]
    panels = [_panel("offered", {_OFFERED: (offered, "rate")})]
    panels += [
        _panel(title, {name: (run["series"], key) for name, run in runs.items()})
        for key, title in _PANELS
    ]
    return plot.draw(panels, columns=2)


def _panel(title: str, lines: dict[str, tuple[dict[str, list[float]], str]]) -> plot.Panel:
    return plot.Panel(
        title,
        plot.Axis("minutes", lowest=0),
        plot.Axis(lowest=0),
        {
            name: list(zip(series["minutes"], series[key], strict=True))
            for name, (series, key) in lines.items()
        },
    )
