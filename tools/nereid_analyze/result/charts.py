"""Makes the report's charts as plotly figures, which are plain data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from nereid_analyze.result.analysis import p99_us
from nereid_analyze.space.candidate import shown
from nereid_perf.output.charts import COLOURS
from nereid_perf.questions.metrics import rate_text, time_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid_analyze.result.analysis import Analysis
    from nereid_analyze.search.trial import Sample

    Figure = dict[str, Any]

_MAX_EFFECTS: Final = 8


def front(analysis: Analysis) -> Figure:
    """Return the chart of all measurements by rate and p99, with the front of the best ones."""
    winner, default = analysis.winner.candidate, analysis.default.candidate
    samples = [sample for sample in analysis.result.samples if sample.trial.batch_size == 1]
    groups = {
        "other candidates": (COLOURS[5], 6),
        "default": (COLOURS[1], 9),
        "best": (COLOURS[2], 9),
    }
    by_group: dict[str, list[Sample]] = {name: [] for name in groups}
    for sample in samples:
        name = "other candidates"
        if sample.trial.candidate == winner and winner != default:
            name = "best"
        elif sample.trial.candidate == default:
            name = "default"
        by_group[name].append(sample)
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            **_points(found),
            "marker": {"color": groups[name][0], "size": groups[name][1], "opacity": 0.75},
        }
        for name, found in by_group.items()
        if found
    ]
    best = analysis.front()
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "front",
            **_points(best),
            "line": {"color": COLOURS[0], "width": 2, "shape": "hv"},
        }
    )
    figure = _figure(
        traces,
        {"title": {"text": "requests per second"}, "rangemode": "tozero"},
        {"title": {"text": "p99, ms"}, "type": "log", "dtick": "D2", "exponentformat": "none"},
    )
    target_us = analysis.job.goal.target_us
    if target_us is not None:
        figure["layout"]["shapes"] = [
            {
                "type": "line",
                "x0": 0,
                "x1": 1,
                "xref": "paper",
                "y0": target_us / 1000,
                "y1": target_us / 1000,
                "line": {"dash": "dash", "width": 1, "color": COLOURS[1]},
            }
        ]
    return figure


def finals(analysis: Analysis) -> Figure:
    """Return the chart of each finalist's rounds."""
    names = analysis_names(analysis)
    traces = [
        {
            "type": "box",
            "name": names[index],
            "y": list(finalist.rates),
            "boxpoints": "all",
            "jitter": 0.4,
            "pointpos": 0,
            "marker": {"color": COLOURS[index % len(COLOURS)]},
            "text": [f"{names[index]}: {rate_text(rate)}" for rate in finalist.rates],
            "hovertemplate": "%{text}<extra></extra>",
        }
        for index, finalist in enumerate(analysis.result.finalists)
    ]
    figure = _figure(traces, {"type": "category"}, {"title": {"text": "requests per second"}})
    figure["layout"]["showlegend"] = False
    return figure


def effects(analysis: Analysis) -> Iterator[tuple[str, str, Figure]]:
    """Yield each setting's name, and the chart of the rate at each of its values."""
    adaptive = analysis.adaptive
    if adaptive is None:
        return
    measured = {
        evaluation.candidate: evaluation for evaluation in adaptive.evaluations if evaluation.rate
    }
    winner = analysis.winner.candidate
    strongest = sorted(adaptive.effects, key=lambda effect: -effect.span)[:_MAX_EFFECTS]
    for number, effect in enumerate(strongest):
        labels = [shown(value) for value, _, _ in effect.rates]
        rates = [rate for _, rate, _ in effect.rates]
        # In logarithms, so that no rate is below 0.
        above = [rate * math.expm1(2 * deviation) for _, rate, deviation in effect.rates]
        below = [-rate * math.expm1(-2 * deviation) for _, rate, deviation in effect.rates]
        traces: list[Figure] = [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": "estimated",
                "x": labels,
                "y": rates,
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": above,
                    "arrayminus": below,
                    "thickness": 1.5,
                    "width": 5,
                },
                "line": {"color": COLOURS[0], "width": 2},
                "text": [
                    f"{label}: {rate_text(rate)}, {rate_text(rate - low)} to"
                    f" {rate_text(rate + high)}"
                    for label, rate, low, high in zip(labels, rates, below, above, strict=True)
                ],
                "hovertemplate": "%{text}<extra></extra>",
            }
        ]
        measured_values = [
            (shown(value), measured[other])
            for value, _, _ in effect.rates
            if (other := winner.replaced(effect.model, effect.name, value)) in measured
        ]
        if measured_values:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": "measured",
                    "x": [label for label, _ in measured_values],
                    "y": [evaluation.rate for _, evaluation in measured_values],
                    "marker": {"color": COLOURS[1], "size": 10},
                }
            )
        owner = f"{effect.model}: " if effect.model else ""
        yield (
            f"effect-{number}",
            f"{owner}{effect.name}",
            _figure(
                traces,
                {"type": "category"},
                {"title": {"text": "requests per second"}, "rangemode": "tozero"},
            ),
        )


def batch_times(analysis: Analysis) -> Figure | None:
    """Return the chart of the fitted batch times, or `None` if there are none."""
    adaptive = analysis.adaptive
    if adaptive is None or not adaptive.times:
        return None
    traces = []
    for index, (model, times) in enumerate(adaptive.times.items()):
        sizes = [1, 2, 4, 8, 16, 32, 64, 128]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": model,
                "x": sizes,
                "y": [times.of(size) / 1000 for size in sizes],
                "text": [f"{model}, {size}: {time_text(times.of(size))}" for size in sizes],
                "hovertemplate": "%{text}<extra></extra>",
                "line": {"color": COLOURS[index % len(COLOURS)], "width": 2},
            }
        )
    return _figure(
        traces,
        {"title": {"text": "rows of a batch"}, "type": "log", "dtick": "D1"},
        {"title": {"text": "ms"}, "type": "log", "exponentformat": "none"},
    )


def analysis_names(analysis: Analysis) -> list[str]:
    """Return the names of the finalists: "default", then names by rank."""
    return [
        "default" if index == 0 else f"candidate {index}"
        for index in range(len(analysis.result.finalists))
    ]


def _points(samples: list[Sample]) -> Figure:
    return {
        "x": [sample.measurement.requests_per_s for sample in samples],
        "y": [p99_us(sample) / 1000 for sample in samples],
        "text": [
            f"{sample.trial.candidate.text}<br>{sample.trial.level.kind}"
            f" {sample.trial.level.value:g}: {rate_text(sample.measurement.requests_per_s)},"
            f" p99 {time_text(p99_us(sample))}"
            for sample in samples
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _figure(traces: list[Figure], xaxis: Figure, yaxis: Figure) -> Figure:
    return {
        "data": traces,
        "layout": {
            "xaxis": {"automargin": True, "zeroline": False, **xaxis},
            "yaxis": {"automargin": True, "zeroline": False, **yaxis},
        },
    }
