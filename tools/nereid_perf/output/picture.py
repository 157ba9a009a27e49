"""Draws rate against latency as PNG, or percentiles for single levels. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_perf.output import charts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from nereid_perf.output.result import MeasuredServer

_DASHES = {"solid": "-", "dot": ":", "dash": "--"}


class PictureError(Exception):
    """Raised if no picture can be made; the text says why."""


def write_png(servers: Mapping[str, MeasuredServer], percentile: float, path: Path) -> None:
    """Write the page's first chart as PNG. May raise PictureError or OSError."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only pictures need it
    except ImportError:
        raise PictureError("--png needs matplotlib: pip install matplotlib") from None
    chart = charts.curve(servers, percentile) or charts.percentiles(servers, percentile)
    if chart is None:
        raise PictureError("--png: nothing was measured, so there is no picture")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for trace in chart["data"]:
        _draw(axes, trace)
    for axis, own in ((axes.xaxis, "xaxis"), (axes.yaxis, "yaxis")):
        layout = chart["layout"][own]
        axis.set_label_text(layout["title"]["text"])
        if layout.get("rangemode") == "tozero":
            (axes.set_xlim if own == "xaxis" else axes.set_ylim)(0)
        if "tickvals" in layout:
            axis.set_ticks(layout["tickvals"], layout["ticktext"])
        if layout.get("type") == "log":
            (axes.set_xscale if own == "xaxis" else axes.set_yscale)("log")
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("{x:g}")
    axes.grid(color="#dde1e6", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, format="png", dpi=150)


def _draw(axes: Any, trace: dict[str, Any]) -> None:
    marker = trace.get("marker", {})
    if trace["mode"] == "markers":
        # This point is a knee.
        axes.plot(
            trace["x"],
            trace["y"],
            "o",
            label=trace["name"],
            markersize=14,
            markerfacecolor="none",
            markeredgewidth=2.5,
            markeredgecolor=marker["color"],
        )
        return
    line = trace["line"]
    axes.plot(
        trace["x"],
        trace["y"],
        _DASHES[line.get("dash", "solid")],
        label=trace["name"],
        color=line["color"],
        linewidth=2,
        marker="o" if marker else "",
        markersize=5,
    )
