"""The frame of all pages: one HTML file that contains plotly, its data and its style."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# A text, or (CSS class, text).
Cell: TypeAlias = str | tuple[str, str]

# The page loads nothing, whatever its code (or plotly) requests.
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
_STYLE: Final = """
:root { color-scheme: light dark; --bg: #ffffff; --panel: #f6f7f9; --text: #1c2127;
  --muted: #5c6672; --line: #dde1e6; --good: #1f7a5c; --bad: #b3422f; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171b; --panel: #1d2126; --text: #e6e9ed;
  --muted: #9aa4af; --line: #343a42; --good: #58c29f; --bad: #ef8a72; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; background: var(--bg);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .5rem; }
p { margin: .3rem 0; max-width: 46rem; }
.muted { color: var(--muted); }
.found { background: var(--panel); border-left: 4px solid #3b82c4; border-radius: 4px;
  padding: .6rem .9rem; margin: 1rem 0 0; }
.found p { overflow-wrap: anywhere; max-width: none; }
.charts { display: grid; gap: 0 1.5rem; grid-template-columns: repeat(2, minmax(0, 1fr)); }
@media (max-width: 56rem) { .charts { grid-template-columns: minmax(0, 1fr); } }
.chart { width: 100%; min-height: 380px; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .55rem; text-align: right; white-space: nowrap; }
th { color: var(--muted); font-weight: 600; background: var(--panel); }
th:first-child, td:first-child { text-align: left; }
tbody tr + tr td { border-top: 1px solid var(--line); }
td.bad, .bad { color: var(--bad); font-weight: 600; }
td.strong { font-weight: 600; }
td.good { color: var(--good); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1rem; margin: 0; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
code { font: 13px/1.5 ui-monospace, monospace; }
@media (max-width: 34rem) { dl { grid-template-columns: minmax(0, 1fr); gap: 0; }
  dd { margin-bottom: .5rem; } body { padding: 1rem .75rem 3rem; } }
"""
_SCRIPT: Final = """
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const layoutOf = (figure, element) => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const line = colour("--line");
    const axis = (own) => ({ gridcolor: line, linecolor: line, ...own });
    const narrow = element.clientWidth < 520;
    return {
      height: 380, showlegend: true, ...figure.layout,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--text"), family: "system-ui, sans-serif", size: narrow ? 11 : 12 },
      margin: { l: 10, r: 10, t: 10, b: 10 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" },
      hoverlabel: { bgcolor: colour("--panel"), bordercolor: line,
        font: { color: colour("--text") } },
      xaxis: axis(figure.layout.xaxis), yaxis: axis(figure.layout.yaxis),
    };
  };
  const config = { displaylogo: false, responsive: true, displayModeBar: false };
  const draw = () => {
    for (const [name, figure] of Object.entries(figures)) {
      const element = document.getElementById(name);
      Plotly.react(element, figure.data, layoutOf(figure, element), config);
    }
  };
  draw();
  dark.addEventListener("change", draw);
})();
"""


def document_text(title: str, body: Iterable[str], figures: Mapping[str, Any]) -> str:
    """Return a page; `body` is HTML, and `figures` has a plotly figure for each element id."""
    return "".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{escaped(title)}</title>\n<style>{_STYLE}</style></head>\n<body>\n",
            f"<h1>{escaped(title)}</h1>\n",
            *body,
            # Escape the JSON, so that no name in it can end the script element.
            '<script type="application/json" id="figures">',
            json.dumps(figures, allow_nan=False).replace("<", "\\u003c"),
            f"</script>\n<script>{_plotly()}</script>\n<script>{_SCRIPT}</script>\n",
            "</body></html>\n",
        ]
    )


def chart_section(figures: Mapping[str, Any], titles: Mapping[str, tuple[str, str]]) -> str:
    """Return HTML elements for the figures that have a title, each with its text below it."""
    parts = ['<div class="charts">']
    for name, (title, text) in titles.items():
        if name in figures:
            parts.append(
                f'<section><h2>{title}</h2><p class="muted">{text}</p>'
                f'<div class="chart" id="{name}"></div></section>'
            )
    return "".join([*parts, "</div>\n<noscript><p>The charts need JavaScript.</p></noscript>\n"])


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return an HTML table."""
    cells = []
    for row in rows:
        texts = [("", cell) if isinstance(cell, str) else cell for cell in row]
        cells.append("".join(f'<td class="{kind}">{escaped(text)}</td>' for kind, text in texts))
    top = "".join(f"<th>{escaped(text)}</th>" for text in head)
    body = "".join(f"<tr>{cell}</tr>" for cell in cells).replace(' class=""', "")
    found = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{found}</div>\n'


def escaped(text: str) -> str:
    """Return a text with HTML's special characters escaped."""
    return html.escape(text)


def _plotly() -> str:
    return resources.files("plotly").joinpath("package_data/plotly.min.js").read_text("utf-8")
