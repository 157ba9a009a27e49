"""One HTML page that is complete: plotly and all data are in it, and its policy forbids requests.

Plotly is 5 MB of each page. Charts to look closely at (hover, zoom, levels on and off) are worth
that; tables say all figures without it.
"""

from __future__ import annotations

import html
import json
import shlex
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from nereid.perf.distribution import mean_us, percentiles_us
from nereid.perf.output import charts
from nereid.perf.output.csv_file import PERCENTILES
from nereid.perf.output.series import level_label
from nereid.perf.output.summary import finding_lines, level_text
from nereid.perf.questions.metrics import attempts, error_share, rate_text, time_text
from nereid.perf.questions.slo import parse_slo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nereid.perf.measurement import Measurement
    from nereid.perf.output.result import MeasuredServer, Result
    from nereid.perf.questions.comparison import Comparison
    from nereid.perf.questions.slo import Slo

    # A text, or its class and the text.
    _Cell = str | tuple[str, str]

# Nothing is fetched, whatever the page (or plotly) would like.
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


def page_text(results: Mapping[str, Result]) -> str:
    """The results, by the names that tell them apart; of one the name is not shown."""
    first = next(iter(results.values()))
    servers = named_servers(results)
    figures = _figures(servers, first)
    for index, comparison in enumerate(first.comparisons):
        figures[f"ratios-{index}"] = charts.ratios(comparison)
    title = "nereid perf: " + ", ".join(
        dict.fromkeys(model for server in servers.values() for model in server.models)
    )
    return "".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{_escaped(title)}</title>\n<style>{_STYLE}</style></head>\n<body>\n",
            f"<h1>{_escaped(title)}</h1>\n",
            *(_subtitle(name if len(servers) > 1 else "", each) for name, each in servers.items()),
            _findings(results),
            *(_comparison(index, each) for index, each in enumerate(first.comparisons)),
            _chart_section(figures),
            _levels_table(servers, parse_slo(first.slo) if first.slo else None),
            *(_how(name, result, named=len(results) > 1) for name, result in results.items()),
            # Not to end the element that it stands in, whatever names say.
            '<script type="application/json" id="figures">',
            json.dumps(figures, allow_nan=False).replace("<", "\\u003c"),
            f"</script>\n<script>{_plotly()}</script>\n<script>{_SCRIPT}</script>\n",
            "</body></html>\n",
        ]
    )


def named_servers(results: Mapping[str, Result]) -> dict[str, MeasuredServer]:
    """All servers of all results: A and B of a comparison, else by the result's name."""
    servers = {}
    for name, result in results.items():
        for index, server in enumerate(result.servers):
            side = "AB"[index] if len(result.servers) > 1 else ""
            servers[" ".join(filter(None, (name if len(results) > 1 else "", side))) or name] = (
                server
            )
    return servers


def _figures(servers: Mapping[str, MeasuredServer], first: Result) -> dict[str, Any]:
    made = {
        "curve": charts.curve(servers, first.percentile),
        "percentiles": charts.percentiles(servers, first.percentile),
        "histogram": charts.histogram(servers, first.percentile),
        "split": charts.server_split(servers, first.percentile),
    }
    return {name: figure for name, figure in made.items() if figure is not None}


def _plotly() -> str:
    return resources.files("plotly").joinpath("package_data/plotly.min.js").read_text("utf-8")


def _subtitle(name: str, server: MeasuredServer) -> str:
    what = f"{server.name} {server.version} at {server.url}, {server.protocol}"
    return f'<p class="muted">{_escaped(f"{name}: {what}" if name else what)}</p>\n'


def _findings(results: Mapping[str, Result]) -> str:
    lines = []
    for name, result in results.items():
        prefix = f"{name}: " if len(results) > 1 else ""
        for line in finding_lines(result):
            # Ratios and goodputs have tables.
            if line.startswith(("  ", "B to A")) or ": goodput " in line:
                continue
            bad = ' class="bad"' if line.startswith("Failed: ") else ""
            lines.append(f"<p{bad}>{_escaped(prefix + line)}</p>")
    return f'<div class="found">{"".join(lines)}</div>\n' if lines else ""


def _comparison(index: int, comparison: Comparison) -> str:
    rows: list[list[_Cell]] = [
        [
            each.metric,
            each.value_text(each.a),
            each.value_text(each.b),
            f"{each.ratio:.3f}",
            each.interval_text,
            ("strong" if each.is_different else "", each.outcome),
        ]
        for each in comparison.ratios
    ]
    how = "paired, each in turn first" if comparison.is_paired else "unpaired"
    text = f"{comparison.rounds} rounds of each, {how}; an interval holds the true ratio"
    text += f" in {100 * comparison.confidence:g} % of comparisons."
    head = ["", "A", "B", "B to A", f"{100 * comparison.confidence:g} % interval", "outcome"]
    return (
        f"<h2>B to A at {_escaped(level_text(comparison.level).lower())}</h2>\n"
        f'<p class="muted">{_escaped(f"{text} {comparison.note}".strip())}</p>\n'
        f'{_table(head, rows)}<div class="chart" style="min-height:0" id="ratios-{index}"></div>\n'
    )


def _chart_section(figures: Mapping[str, Any]) -> str:
    parts = ['<div class="charts">']
    for name, (title, text) in _TITLES.items():
        if name in figures:
            parts.append(
                f'<section><h2>{title}</h2><p class="muted">{text}</p>'
                f'<div class="chart" id="{name}"></div></section>'
            )
    return "".join([*parts, "</div>\n<noscript><p>The charts need JavaScript.</p></noscript>\n"])


_TITLES: Final = {
    "curve": (
        "Rate and latency",
        "Each point is a level of load. The knee has the most rate per latency.",
    ),
    "percentiles": ("Response time by percentile", "From the time that the schedule intended."),
    "histogram": ("Distribution of response times", "Bins grow by a constant factor."),
    "split": (
        "Where the time goes",
        "The server's own phases from its statistics; the rest is network, protocol and client.",
    ),
}


def _levels_table(servers: Mapping[str, MeasuredServer], slo: Slo | None) -> str:
    head = ["level", "requests/s", *(["goodput"] if slo is not None else [])]
    head += ["mean", *(f"p{rank}" for rank in PERCENTILES)]
    head += ["failed", "client CPU", "busiest", "delayed", "stable"]
    several = len(servers) > 1
    rows = [
        [*([name] if several else []), *_level_row(measurement, slo)]
        for name, server in servers.items()
        for measurement in server.measurements
    ]
    return (
        "<h2>Levels</h2>\n"
        '<p class="muted">Client CPU is the load generator\'s own, per request; busiest: what its'
        " busiest worker had of a CPU. Where the client was the bottleneck, figures say more of it"
        " than of the server.</p>\n"
        f"{_table([*(['server'] if several else []), *head], rows)}"
    )


def _level_row(measurement: Measurement, slo: Slo | None) -> list[_Cell]:
    response, client = measurement.latencies.response, measurement.client
    share = error_share(measurement)
    goodput: list[_Cell] = []
    if slo is not None:
        kind = "good" if slo.is_met(measurement) else "bad"
        goodput.append((kind, rate_text(slo.goodput(measurement)).removesuffix("/s")))
    return [
        level_label(measurement.level),
        rate_text(measurement.requests_per_s).removesuffix("/s"),
        *goodput,
        time_text(mean_us(response)),
        *map(time_text, percentiles_us(response, PERCENTILES)),
        ("bad" if share else "", f"{100 * share:.2g} %"),
        time_text(client.cpu_us),
        ("bad" if client.is_bottleneck else "", f"{100 * client.busy:.0f} %"),
        f"{100 * client.delayed / max(attempts(measurement), 1):.2g} %",
        ("", "yes") if measurement.is_stable else ("bad", "no"),
    ]


def _how(name: str, result: Result, *, named: bool) -> str:
    machine = result.machine
    facts = [("command", f"<code>{_escaped(shlex.join(result.command))}</code>")]
    for server in result.servers:
        text = f"{server.name} {server.version}, {server.url}, {server.protocol}, models "
        text += ", ".join(server.models)
        text += f", batch size {server.batch_size}" if server.batch_size > 1 else ""
        facts.append(("server", _escaped(text)))
    memory = f"{machine.memory_bytes / 2**30:.0f} GiB"
    load = f"{machine.host}: {machine.processor}, {machine.cpus} CPUs, {memory}, {machine.system}"
    facts += [
        ("load from", _escaped(load)),
        ("measured by", _escaped(f"nereid {result.nereid_version}, Python {machine.python}")),
        ("started", _escaped(result.started)),
    ]
    items = "".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in facts)
    title = f"How {name} was measured" if named else "How it was measured"
    return f"<h2>{_escaped(title)}</h2>\n<dl>{items}</dl>\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[_Cell]]) -> str:
    cells = []
    for row in rows:
        texts = [("", each) if isinstance(each, str) else each for each in row]
        cells.append("".join(f'<td class="{kind}">{_escaped(text)}</td>' for kind, text in texts))
    top = "".join(f"<th>{_escaped(each)}</th>" for each in head)
    body = "".join(f"<tr>{each}</tr>" for each in cells).replace(' class=""', "")
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>\n'


def _escaped(text: str) -> str:
    return html.escape(text)
