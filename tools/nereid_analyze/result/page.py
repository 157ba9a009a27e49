"""Makes the report: one self-contained HTML page, like the pages of nereid perf."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from nereid_analyze.result import charts
from nereid_analyze.result.analysis import p99_us
from nereid_perf.distribution import percentile_us
from nereid_perf.output.document import chart_section, document_text, escaped, table
from nereid_perf.questions.metrics import rate_text, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_analyze.result.analysis import Analysis
    from nereid_analyze.result.config_change import ConfigChange
    from nereid_perf.output.document import Cell

_MAX_ROWS = 200


def page_text(analysis: Analysis, changes: Sequence[ConfigChange]) -> str:
    """Return the whole page."""
    figures = {"front": charts.front(analysis), "finals": charts.finals(analysis)}
    titles = {
        "front": (
            "Rate and p99",
            "Each point is a measurement; none beats those on the front in both.",
        ),
        "finals": ("The best again", "Each round has all of them, in turns."),
    }
    times = charts.batch_times(analysis)
    if times is not None:
        figures["times"] = times
        titles["times"] = ("Batch times", "t(b) = a + c b, fitted to measured batches.")
    for name, title, figure in charts.effects(analysis):
        figures[name] = figure
        titles[name] = (
            escaped(title),
            "With the other settings as the best has them; bars are two standard deviations.",
        )
    body = [
        f'<p class="muted">{escaped(analysis.job.server)}</p>\n',
        _found(analysis),
        _difference(changes),
        _finalists(analysis),
        chart_section(figures, titles),
        _front(analysis),
        _candidates(analysis),
        _how(analysis),
    ]
    return document_text(f"nereid analyze: {analysis.job.title}", body, figures)


def _found(analysis: Analysis) -> str:
    lines = "".join(f"<p>{escaped(line)}</p>" for line in analysis.lines())
    return f'<div class="found">{lines}</div>\n'


def _difference(changes: Sequence[ConfigChange]) -> str:
    parts = []
    for change in changes:
        rows: list[list[Cell]] = []
        for line, reason in change.lines():
            kind = ""
            if line.startswith("+") and not line.startswith("+++"):
                kind = "good"
            elif line.startswith("-") and not line.startswith("---"):
                kind = "bad"
            shown = line.lstrip(" ")
            rows.append([(kind, "\u00a0" * (len(line) - len(shown)) + shown), reason])
        parts.append(f"<h2>{escaped(change.model)}: config.pbtxt</h2>\n")
        parts.append(table(["", "why"], rows))
    return "".join(parts)


def _finalists(analysis: Analysis) -> str:
    head = ["settings", "", "requests/s", "p50", "p99", "load", "constraints", "memory"]
    priced = analysis.job.price_per_hour is not None
    head += ["per million"] if priced else []
    rows: list[list[Cell]] = []
    names = charts.analysis_names(analysis)
    for index, finalist in enumerate(analysis.result.finalists):
        response = finalist.best.latencies.response if finalist.best is not None else None
        memory = analysis.memory_mb(finalist)
        cost = analysis.cost_per_million(finalist.rate)
        is_best = index == analysis.result.winner
        rows.append(
            [
                finalist.candidate.text,
                f"{names[index]}{', best' if is_best else ''}",
                ("good" if is_best else "", rate_text(finalist.rate).removesuffix("/s")),
                time_text(percentile_us(response, 50)) if response is not None else "",
                time_text(percentile_us(response, 99)) if response is not None else "",
                f"{finalist.level.kind} {finalist.level.value:g}",
                ("", f"kept {finalist.kept} of {len(finalist.rates)}")
                if finalist.is_kept
                else ("bad", f"kept {finalist.kept} of {len(finalist.rates)}"),
                f"{memory:.0f} MB" if memory is not None else "",
                *([f"{cost:.4g}" if cost is not None else ""] if priced else []),
            ]
        )
    return f"<h2>The best beside the default</h2>\n{table(head, rows)}"


def _front(analysis: Analysis) -> str:
    rows = [
        [
            sample.trial.candidate.text,
            rate_text(sample.measurement.requests_per_s).removesuffix("/s"),
            time_text(p99_us(sample)),
            f"{sample.trial.level.kind} {sample.trial.level.value:g}",
        ]
        for sample in analysis.front()
    ]
    return f"<h2>The front</h2>\n{table(['settings', 'requests/s', 'p99', 'load'], rows)}"


def _candidates(analysis: Analysis) -> str:
    rows: list[list[Cell]] = []
    ranked = sorted(analysis.result.evaluations, key=lambda evaluation: -evaluation.rate)
    for evaluation in ranked[:_MAX_ROWS]:
        rate = rate_text(evaluation.rate).removesuffix("/s")
        note = evaluation.failure or ("race lost" if evaluation.is_raced else "")
        rows.append(
            [
                evaluation.candidate.text,
                f"below {rate}" if evaluation.is_raced else rate,
                f"{evaluation.level.kind} {evaluation.level.value:g}",
                str(len(evaluation.samples)),
                ("bad" if evaluation.failure else "", note),
            ]
        )
    head = ["settings", "requests/s", "load", "measurements", ""]
    return f"<h2>All candidates</h2>\n{table(head, rows)}"


def _how(analysis: Analysis) -> str:
    job = analysis.job
    limits = ", ".join(constraint.text for constraint in job.goal.constraints) or "none"
    facts = [
        ("command", f"<code>{escaped(shlex.join(job.command))}</code>"),
        ("server", escaped(job.server)),
        ("objectives", escaped(", ".join(f"{k} {v:g}" for k, v in job.goal.objectives.items()))),
        ("constraints", escaped(limits)),
        ("search", escaped(f"{job.mode}, seed {job.seed}, windows of {job.inner.seconds:g} s")),
        ("settings", escaped("; ".join(_setting_texts(analysis)))),
        ("started", escaped(job.started)),
    ]
    items = "".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in facts)
    return f"<h2>How it was measured</h2>\n<dl>{items}</dl>\n"


def _setting_texts(analysis: Analysis) -> list[str]:
    return [
        f"{setting.label} {', '.join(str(value) for value in setting.values)}"
        for setting in analysis.job.space.settings
    ]
