"""Lines in panels as an SVG, without a plotting library. The same input makes the same bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT, _MARGIN = 420, 260, 56
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8a5a99", "#e09f3e", "#5f6b73")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """The horizontal one, which is logarithmic unless it is to be linear."""

    title: str
    lowest: float
    highest: float
    ticks: Sequence[float]
    linear: bool = False


@dataclass(frozen=True)
class Panel:
    """lines: each one's points by its name in the legend; a panel may lack some. labels: of a
    line's points.
    """

    title: str
    axis: Axis
    lines: Mapping[str, Points]
    labels: Mapping[str, Sequence[str]]


def draw(panels: Sequence[Panel], legend: Sequence[str]) -> str:
    """The panels side by side; a colour for each name in the legend."""
    width, height = len(panels) * _WIDTH, _HEIGHT + 24 * len(legend) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    colours = {title: COLOURS[index % len(COLOURS)] for index, title in enumerate(legend)}
    for index, panel in enumerate(panels):
        parts += _panel(panel, colours, index * _WIDTH)
    for index, title in enumerate(legend):
        y = _HEIGHT + 24 * index + 12
        parts.append(
            f'<rect x="{_MARGIN}" y="{y - 9}" width="18" height="6" fill="{colours[title]}"/>'
        )
        parts.append(f'<text x="{_MARGIN + 26}" y="{y}">{escape(title)}</text>')
    return "\n".join((*parts, "</svg>", ""))


def _panel(panel: Panel, colours: Mapping[str, str], left: int) -> list[str]:
    axis = panel.axis
    top = 1.15 * max(y for points in panel.lines.values() for _, y in points)
    x0, x1, y0, y1 = left + _MARGIN, left + _WIDTH - 16, _HEIGHT - 40, 32

    def x(value: float) -> float:
        if axis.linear:
            return x0 + (x1 - x0) * (value - axis.lowest) / (axis.highest - axis.lowest)
        return x0 + (x1 - x0) * math.log(value / axis.lowest) / math.log(axis.highest / axis.lowest)

    def y(value: float) -> float:
        return y0 - (y0 - y1) * value / top

    parts = [
        f'<text x="{x0}" y="18" font-weight="bold">{escape(panel.title)}</text>',
        f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#555"/>',
    ]
    parts += [
        f'<text x="{x(tick):.0f}" y="{y0 + 16}" text-anchor="middle">{tick:g}</text>'
        for tick in axis.ticks
    ]
    for share in (0.25, 0.5, 0.75, 1):
        value = top * share / 1.15
        text = f"{value:.2f}" if top < 10 else f"{value:.0f}"
        parts.append(f'<text x="{x0 - 6}" y="{y(value):.0f}" text-anchor="end">{text}</text>')
        parts.append(f'<path d="M{x0} {y(value):.1f}H{x1}" stroke="#ddd"/>')
    for title, colour in colours.items():
        if title in panel.lines:
            points = [(x(px), y(py)) for px, py in panel.lines[title]]
            parts += _line(points, panel.labels.get(title, ()), colour)
    parts.append(
        f'<text x="{(x0 + x1) / 2:.0f}" y="{y0 + 32}" text-anchor="middle">'
        f"{escape(axis.title)}</text>"
    )
    return parts


def _line(points: Points, labels: Sequence[str], colour: str) -> list[str]:
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
    parts += [
        f'<text x="{px + 5:.1f}" y="{py - 5:.1f}" fill="{colour}">{escape(label)}</text>'
        for (px, py), label in zip(points, labels, strict=False)
    ]
    return parts
