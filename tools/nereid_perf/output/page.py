"""Makes the HTML page of results; plotly adds 5 MB, which interactive charts are worth."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from nereid_perf.distribution import mean_us, percentiles_us
from nereid_perf.output import charts
from nereid_perf.output.csv_file import PERCENTILES
from nereid_perf.output.document import chart_section, document_text, escaped, table
from nereid_perf.output.series import level_label
from nereid_perf.output.summary import finding_lines, level_text
from nereid_perf.questions.metrics import attempts, error_share, rate_text, time_text
from nereid_perf.questions.slo import parse_slo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid_perf.measurement import Measurement
    from nereid_perf.output.document import Cell
    from nereid_perf.output.result import MeasuredServer, Result
    from nereid_perf.questions.comparison import Comparison
    from nereid_perf.questions.slo import Slo


def page_text(results: Mapping[str, Result]) -> str:
    """Return the page, which names the results if there are several."""
    first = next(iter(results.values()))
    servers = named_servers(results)
    figures = _figures(servers, first)
    for index, comparison in enumerate(first.comparisons):
        figures[f"ratios-{index}"] = charts.ratios(comparison)
    title = "nereid perf: " + ", ".join(
        dict.fromkeys(model for server in servers.values() for model in server.models)
    )
    body = [
        *(_subtitle(name if len(servers) > 1 else "", server) for name, server in servers.items()),
        _findings(results),
        *(_comparison(index, comparison) for index, comparison in enumerate(first.comparisons)),
        chart_section(figures, _TITLES),
        _levels_table(servers, parse_slo(first.slo) if first.slo else None),
        _timings_table(servers),
        *(_how(name, result, named=len(results) > 1) for name, result in results.items()),
    ]
    return document_text(title, body, figures)


def named_servers(results: Mapping[str, Result]) -> dict[str, MeasuredServer]:
    """Map display names to servers: A and B of a comparison, after the result's name if needed."""
    servers = {}
    for name, result in results.items():
        for index, server in enumerate(result.servers):
            side = "AB"[index] if len(result.servers) > 1 else ""
            servers[" ".join(filter(None, (name if len(results) > 1 else "", side))) or name] = (
                server
            )
    return servers


def _figures(servers: Mapping[str, MeasuredServer], first: Result) -> dict[str, Any]:
    charts_by_name = {
        "curve": charts.curve(servers, first.percentile),
        "percentiles": charts.percentiles(servers, first.percentile),
        "histogram": charts.histogram(servers, first.percentile),
        "split": charts.server_split(servers, first.percentile),
    }
    return {name: figure for name, figure in charts_by_name.items() if figure is not None}


def _subtitle(name: str, server: MeasuredServer) -> str:
    what = f"{server.name} {server.version} at {server.url}, {server.protocol}"
    return f'<p class="muted">{escaped(f"{name}: {what}" if name else what)}</p>\n'


def _findings(results: Mapping[str, Result]) -> str:
    lines = []
    for name, result in results.items():
        prefix = f"{name}: " if len(results) > 1 else ""
        for line in finding_lines(result):
            # The page has tables of ratios and goodputs.
            if line.startswith(("  ", "B to A")) or ": goodput " in line:
                continue
            bad = ' class="bad"' if line.startswith("Failed: ") else ""
            lines.append(f"<p{bad}>{escaped(prefix + line)}</p>")
    return f'<div class="found">{"".join(lines)}</div>\n' if lines else ""


def _comparison(index: int, comparison: Comparison) -> str:
    rows: list[list[Cell]] = [
        [
            ratio.metric,
            f"{ratio.ratio:.3f}",
            ratio.interval_text,
            ("strong" if ratio.is_different else "", ratio.outcome),
            ratio.value_text(ratio.a),
            ratio.value_text(ratio.b),
        ]
        for ratio in comparison.ratios
    ]
    how = "paired, each in turn first" if comparison.is_paired else "unpaired"
    text = f"{comparison.rounds} rounds of each, {how}; an interval holds the true ratio"
    text += f" in {100 * comparison.confidence:g} % of comparisons."
    head = ["", "B to A", f"{100 * comparison.confidence:g} % interval", "outcome", "A", "B"]
    return (
        f"<h2>B to A at {escaped(level_text(comparison.level).lower())}</h2>\n"
        f'<p class="muted">{escaped(f"{text} {comparison.note}".strip())}</p>\n'
        f'{table(head, rows)}<div class="chart" style="min-height:0" id="ratios-{index}"></div>\n'
    )


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
        f"{table([*(['server'] if several else []), *head], rows)}"
    )


def _timings_table(servers: Mapping[str, MeasuredServer]) -> str:
    several = len(servers) > 1
    rows: list[list[Cell]] = [
        [
            *([name] if several else []),
            level_label(measurement.level),
            phase,
            time_text(timing.mean_us),
            time_text(timing.p99_us),
            f"{timing.requests}",
        ]
        for name, server in servers.items()
        for measurement in server.measurements
        for phase, timing in measurement.timings.items()
    ]
    if not rows:
        return ""
    head = [*(["server"] if several else []), "level", "phase", "mean", "p99", "requests"]
    return (
        "<h2>Server-Timing</h2>\n"
        '<p class="muted">What responses said of their own time. Means are over all of them, so'
        " that parts add up; client and wire is what of the service time is not the server's.</p>\n"
        f"{table(head, rows)}"
    )


def _level_row(measurement: Measurement, slo: Slo | None) -> list[Cell]:
    response, client = measurement.latencies.response, measurement.client
    share = error_share(measurement)
    goodput: list[Cell] = []
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
    facts = [("command", f"<code>{escaped(shlex.join(result.command))}</code>")]
    for server in result.servers:
        text = f"{server.name} {server.version}, {server.url}, {server.protocol}, models "
        text += ", ".join(server.models)
        text += f", batch size {server.batch_size}" if server.batch_size > 1 else ""
        facts.append(("server", escaped(text)))
    memory = f"{machine.memory_bytes / 2**30:.0f} GiB"
    load = f"{machine.host}: {machine.processor}, {machine.cpus} CPUs, {memory}, {machine.system}"
    facts += [
        ("load from", escaped(load)),
        ("measured by", escaped(f"nereid {result.nereid_version}, Python {machine.python}")),
        ("started", escaped(result.started)),
    ]
    items = "".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in facts)
    title = f"How {name} was measured" if named else "How it was measured"
    return f"<h2>{escaped(title)}</h2>\n<dl>{items}</dl>\n"
