"""The figures as an SVG, without a plotting library."""

from __future__ import annotations

import math
from typing import Any

_WIDTH, _HEIGHT, _MARGIN = 420, 260, 56
_PANELS = (
    ("lines_per_request", "lines of the scheduler per request"),
    ("cpu_ratio", "CPU per request, by that of the smallest mesh"),
    ("utilisation", "utilisation of executors (ideal: 1)"),
)
_COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8a5a99", "#e09f3e")


def draw(results: dict[str, list[dict[str, Any]]]) -> str:
    """One panel for each figure; a line for each sweep, over the size that it varies."""
    width, height = len(_PANELS) * _WIDTH, _HEIGHT + 24 * len(results) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for index, (key, title) in enumerate(_PANELS):
        parts += _panel(results, key, title, index * _WIDTH)
    for index, title in enumerate(results):
        y = _HEIGHT + 24 * index + 12
        colour = _COLOURS[index % len(_COLOURS)]
        parts.append(f'<rect x="{_MARGIN}" y="{y - 9}" width="18" height="6" fill="{colour}"/>')
        parts.append(f'<text x="{_MARGIN + 26}" y="{y}">{title}</text>')
    return "\n".join((*parts, "</svg>", ""))


def _panel(results: dict[str, list[dict[str, Any]]], key: str, title: str, left: int) -> list[str]:
    top: float = 1.15 * max(each[key] for rows in results.values() for each in rows)
    largest: int = max(_varied(rows)[-1] for rows in results.values())
    x0, x1, y0, y1 = left + _MARGIN, left + _WIDTH - 16, _HEIGHT - 40, 32

    def x(value: float) -> float:
        return x0 + (x1 - x0) * math.log(value) / math.log(largest)

    def y(value: float) -> float:
        return y0 - (y0 - y1) * value / top

    parts = [
        f'<text x="{x0}" y="18" font-weight="bold">{title}</text>',
        f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#555"/>',
    ]
    parts += [
        f'<text x="{x(tick):.0f}" y="{y0 + 16}" text-anchor="middle">{tick}</text>'
        for tick in (1, 10, 100, 1000)
    ]
    for share in (0.25, 0.5, 0.75, 1):
        value = top * share / 1.15
        text = f"{value:.2f}" if top < 10 else f"{value:.0f}"
        parts.append(f'<text x="{x0 - 6}" y="{y(value):.0f}" text-anchor="end">{text}</text>')
        parts.append(f'<path d="M{x0} {y(value):.1f}H{x1}" stroke="#ddd"/>')
    for index, rows in enumerate(results.values()):
        points = [(x(size), y(row[key])) for size, row in zip(_varied(rows), rows, strict=True)]
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points
        ]
    parts.append(
        f'<text x="{(x0 + x1) / 2:.0f}" y="{y0 + 32}" text-anchor="middle">'
        "executors, or models</text>"
    )
    return parts


def _varied(rows: list[dict[str, Any]]) -> list[int]:
    key = "models" if rows[0]["models"] != rows[-1]["models"] else "executors"
    return [row[key] for row in rows]
