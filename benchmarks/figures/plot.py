"""Panels of lines as an SVG, drawn by matplotlib. The same input makes the same bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as MatplotlibAxis

Points = Sequence[tuple[float, float]]

# Okabe and Ito's colours, which people with any kind of colour blindness can tell apart, with a
# dash of its own for each. Later lines are thinner, so that one on top of another hides nothing.
_STYLES: tuple[tuple[str, Any], ...] = (
    ("#0072b2", "solid"),
    ("#d55e00", (0, (4, 1.5))),
    ("#009e73", (0, (1.5, 1))),
    ("#000000", "solid"),
    ("#cc79a7", (0, (4, 1.5))),
    ("#56b4e9", (0, (1.5, 1))),
    ("#e69f00", "solid"),
)
_MARKERS = ("o", "s", "^", "D", "v", "P")
_WIDEST, _THINNEST = 3.2, 1.6
# Characters of the legend that fit beneath a panel.
_LEGEND_WIDTH = 68
_LEGEND_ROW_INCHES = 0.22
_PANEL_INCHES = (4.2, 2.9)
_SETTINGS: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "font.size": 9,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    # Element ids would be random otherwise.
    "svg.hashsalt": "nereid",
}


@dataclass(frozen=True)
class Axis:
    """Axis of a panel."""

    title: str = ""
    logarithmic: bool = False
    # `None` leaves it to the points.
    lowest: float | None = None
    ticks: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    """Panel of lines.

    lines: maps a line's name in the legend to its points. labels: maps a line's name to the labels
    of its points. Points with the same label have the same marker.
    """

    title: str
    x: Axis
    y: Axis
    lines: Mapping[str, Points]
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)


def draw(panels: Sequence[Panel], *, columns: int, label_title: str = "") -> str:
    """Return an SVG with the panels in rows, and one legend.

    columns: number of panels in a row. label_title: text that says what the points' labels mean.
    """
    # They take half a second to import, and only users who draw have them.
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.lines import Line2D  # noqa: PLC0415

    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    labels = dict.fromkeys(
        label for panel in panels for row in panel.labels.values() for label in row
    )
    markers = dict(zip(labels, _MARKERS, strict=False))
    titles = [*names, *(f"{label} {label_title}" for label in labels)]
    legend_columns = max(1, columns * _LEGEND_WIDTH // (max(map(len, titles)) + 10))
    legend_inches = _LEGEND_ROW_INCHES * (1 + math.ceil(len(titles) / legend_columns))
    rows = math.ceil(len(panels) / columns)
    width, height = _PANEL_INCHES
    with mpl.rc_context():
        # Settings of the user are ignored.
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        figure = Figure((columns * width, rows * height + legend_inches), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for panel, axes in zip(panels, grid.flat, strict=True):
            _draw_panel(panel, axes, names, markers)
        entries = [Line2D([], [], **_style(index, names)) for index in range(len(names))]
        entries += [
            Line2D([], [], color="#666666", linestyle="", marker=marker)
            for marker in markers.values()
        ]
        figure.legend(entries, titles, loc="outside lower left", ncols=legend_columns)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Creator": None, "Date": None})
    return text.getvalue()


def _style(index: int, names: Sequence[str]) -> dict[str, Any]:
    colour, dash = _STYLES[index % len(_STYLES)]
    thinner = (_WIDEST - _THINNEST) / max(1, len(names) - 1)
    return {"color": colour, "linestyle": dash, "linewidth": _WIDEST - thinner * index}


def _draw_panel(panel: Panel, axes: Axes, names: Sequence[str], markers: Mapping[str, str]) -> None:
    axes.set_title(panel.title)
    for index, name in enumerate(names):
        if name not in panel.lines:
            continue
        points = panel.lines[name]
        style = _style(index, names)
        axes.plot([x for x, _ in points], [y for _, y in points], **style)
        for (x, y), label in zip(points, panel.labels.get(name, ()), strict=False):
            axes.plot(x, y, marker=markers[label], markersize=5.5, color=style["color"])
    for axis, wanted in ((axes.xaxis, panel.x), (axes.yaxis, panel.y)):
        _set_axis(axis, wanted)
    axes.set_xlabel(panel.x.title)
    axes.set_ylabel(panel.y.title)


def _set_axis(axis: MatplotlibAxis, wanted: Axis) -> None:
    from matplotlib import ticker  # noqa: PLC0415

    axes = axis.axes
    set_scale, set_limits, limits = (
        (axes.set_xscale, axes.set_xlim, axes.get_xlim)
        if axis is axes.xaxis
        else (axes.set_yscale, axes.set_ylim, axes.get_ylim)
    )
    if wanted.logarithmic:
        set_scale("log")
        lowest, highest = limits()
        steps = (1, 2, 5) if highest / lowest < 1000 else (1,)
        axis.set_major_locator(ticker.LogLocator(subs=steps, numticks=20))
        axis.set_minor_locator(ticker.NullLocator())
    if wanted.ticks is not None:
        axis.set_major_locator(ticker.FixedLocator(wanted.ticks))
    if wanted.lowest is not None:
        highest = limits()[1]
        set_limits(wanted.lowest, highest + 0.05 * (highest - wanted.lowest))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
