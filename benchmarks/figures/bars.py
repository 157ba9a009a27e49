"""Groups of horizontal bars as an SVG without a library, for a light and a dark background."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 760
_NAMES = 190  # Width of the column of names.
_VALUES = 80  # Space behind the longest bar.
_ROW, _BAR, _TITLE, _MARGIN = 24, 15, 34, 14


@dataclass(frozen=True)
class Theme:
    """Colours of a chart. ours: of Nereid's bars; theirs: of all others."""

    background: str
    text: str
    faint: str
    ours: str
    theirs: str


THEMES = {
    "light": Theme("#ffffff", "#1f2328", "#59636e", "#3f51b5", "#b6bdc6"),
    "dark": Theme("#0d1117", "#e6edf3", "#9198a1", "#8c9eff", "#4a525c"),
}


@dataclass(frozen=True)
class Bar:
    """Bar with its name in front and its value behind."""

    name: str
    value: float
    is_ours: bool


@dataclass(frozen=True)
class Group:
    """Bars below a title, longest first; bars of all groups have one scale."""

    title: str
    bars: Sequence[Bar]


def draw(title: str, groups: Sequence[Group], theme: Theme) -> str:
    """Return an SVG with the groups below each other."""
    largest = max(bar.value for group in groups for bar in group.bars)
    scale = (_WIDTH - _NAMES - _VALUES - 2 * _MARGIN) / largest
    parts = []
    y = _MARGIN + _ROW // 2
    parts.append(_text(_MARGIN, y + 5, title, f'font-weight="600" fill="{theme.text}"'))
    y += _ROW // 2
    for group in groups:
        y += _TITLE
        parts.append(_text(_MARGIN, y - 8, group.title, f'fill="{theme.faint}"'))
        for bar in group.bars:
            parts += _bar(bar, y + _ROW / 2, bar.value * scale, theme)
            y += _ROW
    return document((_WIDTH, y + _MARGIN), title, parts, theme)


def document(size: tuple[int, int], title: str, parts: Sequence[str], theme: Theme) -> str:
    """Return an SVG of elements on the theme's background, with a title for screen readers."""
    width, height = size
    box = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    font = 'font-family="system-ui, sans-serif" font-size="13"'
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" {font}>'
    background = f'<rect width="100%" height="100%" rx="6" fill="{theme.background}"/>'
    about = f"<title>{escape(title)}</title>"
    return "\n".join((begin, about, background, *parts, "</svg>", ""))


def _bar(bar: Bar, middle: float, length: float, theme: Theme) -> tuple[str, str, str]:
    colour = theme.ours if bar.is_ours else theme.theirs
    text = f'fill="{theme.text}"' + (' font-weight="600"' if bar.is_ours else "")
    x, baseline = _MARGIN + _NAMES, middle + 4.5
    place = f'x="{x}" y="{middle - _BAR / 2}" width="{max(1.0, length):.1f}" height="{_BAR}"'
    return (
        _text(x - 10, baseline, bar.name, f'text-anchor="end" {text}'),
        f'<rect {place} rx="2" fill="{colour}"/>',
        _text(x + length + 8, baseline, f"{bar.value:,.0f}", text),
    )


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'
