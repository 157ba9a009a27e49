"""Makes the page's charts as plotly figures, which are plain data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from nereid_perf.output.series import (
    REST,
    LevelFigures,
    histogram_shares,
    level_figures,
    percentile_curve,
)
from nereid_perf.questions.knee import find_knee
from nereid_perf.questions.metrics import parse_metric, rate_text, time_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid_perf.output.result import MeasuredServer
    from nereid_perf.questions.comparison import Comparison

    Figure = dict[str, Any]

# Colours that are readable on white and on near-black, and for people who cannot tell red from
# green.
COLOURS: Final = ("#3b82c4", "#d9663a", "#2f9e83", "#a36bc2", "#b8892b", "#7d8590", "#c2567e")
# Colours from little to much load.
_RAMP: Final = (
    "#6fb1e0",
    "#4f93d2",
    "#5a74c4",
    "#7a5cb8",
    "#a04aa2",
    "#c03f80",
    "#d94a55",
    "#e8743b",
)
_PHASE_COLOURS: Final = {
    "Server Queue": "#d9663a",
    "Server Compute Input": "#b8892b",
    "Server Compute Infer": "#3b82c4",
    "Server Compute Output": "#2f9e83",
    "Server Cache Hit": "#a36bc2",
    "Server Cache Miss": "#c2567e",
    REST: "#7d8590",
}
_MAX_SHOWN: Final = len(_RAMP)
_RANKS: Final = (0, 50, 90, 99, 99.9, 99.99, 99.999)


def curve(servers: Mapping[str, MeasuredServer], percentile: float) -> Figure | None:
    """Return the chart of rate against latency with knees; `None` if no server has two levels."""
    traces: list[Figure] = []
    curves = {name: level_figures(server, percentile) for name, server in servers.items()}
    if max(map(len, curves.values()), default=0) < 2:
        return None
    tail = f"p{percentile:g}"
    for index, (name, series) in enumerate(curves.items()):
        for rank, is_tail in ((tail, True), ("p50", False)):
            colour = COLOURS[index % len(COLOURS)]
            if len(curves) == 1 and not is_tail:
                colour = COLOURS[2]
            values = [figures.tail_us if is_tail else figures.p50_us for figures in series]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": rank if len(curves) == 1 else f"{name} {rank}",
                    "x": [figures.rate for figures in series],
                    "y": [us / 1000 for us in values],
                    "text": [
                        _hover(figures, rank, us)
                        for figures, us in zip(series, values, strict=True)
                    ],
                    "hovertemplate": "%{text}<extra></extra>",
                    "line": {"color": colour, "width": 2, "dash": "solid" if is_tail else "dot"},
                    "marker": {"size": 7},
                }
            )
        knee = find_knee(servers[name].measurements, parse_metric(tail))
        if knee is not None:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": "knee" if len(curves) == 1 else f"{name} knee",
                    "x": [knee.rate],
                    "y": [knee.latency_us / 1000],
                    "text": [f"knee: {rate_text(knee.rate)}, {time_text(knee.latency_us)}"],
                    "hovertemplate": "%{text}<extra></extra>",
                    "marker": {
                        "size": 17,
                        "symbol": "circle-open",
                        "line": {"width": 3},
                        "color": COLOURS[1] if len(curves) == 1 else COLOURS[index % len(COLOURS)],
                    },
                }
            )
    return _figure(
        traces,
        {"title": {"text": "requests per second"}, "rangemode": "tozero"},
        {"title": {"text": "response time, ms"}, "rangemode": "tozero"},
    )


def percentiles(servers: Mapping[str, MeasuredServer], percentile: float) -> Figure | None:
    """Return the chart of response time by percentile; 90, 99 and 99.9 are equally far apart."""
    traces = []
    most = 0.0
    for name, figures, style in _styled(servers, percentile):
        ranks, values = percentile_curve(figures)
        most = max(most, *ranks)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": [_stretched(rank) for rank in ranks],
                "y": [us / 1000 for us in values],
                "text": [
                    f"{name}<br>p{r:.6g}: {time_text(us)}"
                    for r, us in zip(ranks, values, strict=True)
                ],
                "hovertemplate": "%{text}<extra></extra>",
                **style,
            }
        )
    if not traces:
        return None
    shown = [rank for rank in _RANKS if rank <= most]
    ticks = {
        "tickvals": [_stretched(rank) for rank in shown],
        "ticktext": [f"{rank:g}" for rank in shown],
    }
    return _figure(
        traces,
        {"title": {"text": "percentile"}, "tickmode": "array", **ticks},
        {"title": {"text": "response time, ms"}, "type": "log", **_LOG_TICKS},
    )


def histogram(servers: Mapping[str, MeasuredServer], percentile: float) -> Figure | None:
    """Return the chart of how many requests took how long; `None` without measurements."""
    styled = list(_styled(servers, percentile))
    if not styled:
        return None
    edges, shares = histogram_shares([figures for _, figures, _ in styled])
    traces = []
    for (name, _, style), share in zip(styled, shares, strict=True):
        bins = zip(edges, edges[1:], share, strict=False)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": [edge / 1000 for edge in edges],
                "y": [100 * part for part in (*share, 0)],
                "text": [
                    f"{name}<br>{time_text(low)} to {time_text(high)}: {100 * part:.2g} %"
                    for low, high, part in bins
                ],
                "hovertemplate": "%{text}<extra></extra>",
                **style,
                "line": {**style["line"], "shape": "hv", "width": 1.5},
            }
        )
    return _figure(
        traces,
        {"title": {"text": "response time, ms"}, "type": "log", **_LOG_TICKS},
        {"title": {"text": "% of the requests"}, "rangemode": "tozero"},
    )


def server_split(servers: Mapping[str, MeasuredServer], percentile: float) -> Figure | None:
    """Return the stacked chart of the parts of a request's mean time; `None` without statistics."""
    rows = [
        (name, figures.label, figures.phases_us)
        for name, server in servers.items()
        for figures in level_figures(server, percentile)
        if figures.phases_us
    ]
    if not rows:
        return None
    labels: list[Any] = [label for _, label, _ in rows]
    if len(servers) > 1:
        labels = [[name for name, _, _ in rows], labels]
    traces = []
    for phase in {phase: None for _, _, phases in rows for phase in phases}:
        values = [phases.get(phase, 0.0) for _, _, phases in rows]
        traces.append(
            {
                "type": "bar",
                "name": phase,
                "x": labels,
                "y": [us / 1000 for us in values],
                "text": [f"{phase}: {time_text(us)}" for us in values],
                "textposition": "none",
                "hovertemplate": "%{x}<br>%{text}<extra></extra>",
                "marker": {"color": _PHASE_COLOURS[phase]},
            }
        )
    figure = _figure(
        traces,
        {"type": "multicategory" if len(servers) > 1 else "category"},
        {"title": {"text": "mean time of a request, ms"}},
    )
    figure["layout"] |= {"barmode": "stack", "bargap": 0.35}
    return figure


def ratios(comparison: Comparison) -> Figure:
    """Return the chart of all ratios of B to A with their intervals."""
    shown = list(reversed(comparison.ratios))
    # Without an interval, the error bars end at the estimate.
    ends = [(ratio.low or ratio.ratio, ratio.high or ratio.ratio) for ratio in shown]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "name": "B to A",
        "x": [ratio.ratio for ratio in shown],
        "y": [ratio.metric for ratio in shown],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [high - ratio.ratio for ratio, (_, high) in zip(shown, ends, strict=True)],
            "arrayminus": [ratio.ratio - low for ratio, (low, _) in zip(shown, ends, strict=True)],
            "thickness": 2,
            "width": 6,
            "color": COLOURS[5],
        },
        "text": [f"{ratio.metric}: {ratio.ratio:.3f} ({ratio.interval_text})" for ratio in shown],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "size": 11,
            "color": [COLOURS[1] if ratio.is_different else COLOURS[5] for ratio in shown],
        },
    }
    figure = _figure([trace], {"title": {"text": "ratio of B to A"}}, {"type": "category"})
    figure["layout"] |= {
        "showlegend": False,
        "height": 120 + 45 * len(shown),
        "shapes": [
            {
                "type": "line",
                "x0": 1,
                "x1": 1,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"dash": "dash", "width": 1, "color": COLOURS[5]},
            }
        ],
    }
    return figure


_LOG_TICKS: Final = {"exponentformat": "none"}
# Line styles for the least, medium and most load, if colours show servers.
_DASHES: Final = ("dot", "dash", "solid")


def _styled(
    servers: Mapping[str, MeasuredServer], percentile: float
) -> list[tuple[str, LevelFigures, Figure]]:
    """Return the levels to draw; colours show the load, or with several servers the server."""
    styled: list[tuple[str, LevelFigures, Figure]] = []
    for index, (name, server) in enumerate(servers.items()):
        series = level_figures(server, percentile)
        if len(servers) > 1:
            colour = COLOURS[index % len(COLOURS)]
            # Nobody could tell all levels apart; the table has all of them.
            some = [series[place] for place in _ends_and_middle(len(series))]
            for figures, dash in zip(some, _DASHES[3 - len(some) :], strict=True):
                line = {"color": colour, "width": 2, "dash": dash}
                styled.append((f"{name}: {figures.label}", figures, {"line": line}))
            continue
        for place, figures in enumerate(series):
            at = place * (len(_RAMP) - 1) // max(len(series) - 1, 1)
            style: Figure = {"line": {"color": _RAMP[at], "width": 2}}
            if not _is_shown(place, len(series)):
                style["visible"] = "legendonly"
            styled.append((figures.label, figures, style))
    return styled


def _ends_and_middle(levels: int) -> list[int]:
    return sorted({0, levels // 2, levels - 1}) if levels else []


def _is_shown(place: int, levels: int) -> bool:
    """Return whether the chart shows a level at first; readers can add others in the legend."""
    if levels <= _MAX_SHOWN:
        return True
    step = (levels - 1) / (_MAX_SHOWN - 1)
    return place in {round(step * shown) for shown in range(_MAX_SHOWN)}


def _stretched(rank: float) -> float:
    """Return a percentile's position on an axis with 90, 99 and 99.9 equally far apart."""
    return -math.log10(max(1 - rank / 100, 1e-9))


def _hover(figures: LevelFigures, rank: str, us: float) -> str:
    return f"{figures.label}<br>{rate_text(figures.rate)}<br>{rank} {time_text(us)}"


def _figure(traces: Sequence[Figure], xaxis: Figure, yaxis: Figure) -> Figure:
    return {
        "data": list(traces),
        "layout": {
            "xaxis": {"automargin": True, "zeroline": False, **xaxis},
            "yaxis": {"automargin": True, "zeroline": False, **yaxis},
        },
    }
