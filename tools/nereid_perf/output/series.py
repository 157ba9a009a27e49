"""Prepares measurements for charts: one set of figures for each level of each server."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from nereid_perf.distribution import mean_us, percentile_us, recorded_us
from nereid_perf.output.csv_file import phases_us
from nereid_perf.questions.levels import CONCURRENCY, RATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nereid_perf.measurement import LoadLevel, Measurement
    from nereid_perf.output.result import MeasuredServer

REST = "Network and client"

_KINDS = {CONCURRENCY: " in flight", RATE: "/s"}


@dataclass(frozen=True, slots=True)
class LevelFigures:
    """Figures of a level, which are medians over its rounds.

    counts: requests with each latency of values_us. phases_us: mean time in each phase of the
    server; last comes the rest of the client's time.
    """

    level: LoadLevel
    rounds: int
    rate: float
    p50_us: float
    tail_us: float
    values_us: NDArray[np.float64]
    counts: NDArray[np.int64]
    phases_us: dict[str, float]

    @property
    def label(self) -> str:
        """Label of the level."""
        return level_label(self.level)


def level_label(level: LoadLevel) -> str:
    """Return a label such as "4 in flight"."""
    kind = _KINDS.get(level.kind)
    return "trace" if kind is None else f"{level.value:g}{kind}"


def level_figures(server: MeasuredServer, percentile: float) -> list[LevelFigures]:
    """Return the figures by increasing load; leave out levels at which no request succeeded."""
    rounds: dict[LoadLevel, list[Measurement]] = {}
    for measurement in server.measurements:
        if measurement.requests:
            rounds.setdefault(measurement.level, []).append(measurement)
    levels = sorted(rounds, key=lambda level: (level.kind, level.value))
    return [_figures(level, rounds[level], percentile) for level in levels]


def percentile_curve(figures: LevelFigures) -> tuple[list[float], list[float]]:
    """Return percentiles, denser towards 100, and their latencies."""
    total = int(figures.counts.sum())
    nines = np.linspace(0, np.log10(max(total, 2)), 80)
    shares = np.unique(np.append(1 - 10**-nines, 0.5))
    below = np.cumsum(figures.counts)
    places = np.searchsorted(below, np.minimum(shares * total, total))
    return (shares * 100).tolist(), figures.values_us[places].tolist()


def histogram_shares(
    series: Sequence[LevelFigures], bins: int = 60
) -> tuple[list[float], list[list[float]]]:
    """Return the edges of geometric bins, and each level's share of requests in each bin."""
    low = min(float(figures.values_us[0]) for figures in series)
    high = max(float(figures.values_us[-1]) for figures in series)
    edges = np.geomspace(max(low, 1e-3) * 0.99, high * 1.01, bins + 1)
    shares = []
    for figures in series:
        counts, _ = np.histogram(figures.values_us, edges, weights=figures.counts)
        shares.append((counts / figures.counts.sum()).tolist())
    return edges.tolist(), shares


def _figures(level: LoadLevel, rounds: list[Measurement], percentile: float) -> LevelFigures:
    recorded = [recorded_us(measurement.latencies.response) for measurement in rounds]
    values, places = np.unique(
        np.concatenate([values for values, _ in recorded]), return_inverse=True
    )
    counts = np.bincount(places, np.concatenate([values for _, values in recorded]))
    return LevelFigures(
        level,
        len(rounds),
        median(measurement.requests_per_s for measurement in rounds),
        median(percentile_us(measurement.latencies.response, 50) for measurement in rounds),
        median(percentile_us(measurement.latencies.response, percentile) for measurement in rounds),
        values,
        counts.astype(np.int64),
        _phases(rounds),
    )


def _phases(rounds: list[Measurement]) -> dict[str, float]:
    of_rounds = []
    for measurement in rounds:
        if measurement.server:
            has_cache = measurement.server[0].cache_hits + measurement.server[0].cache_misses > 0
            phases = phases_us(measurement.server[0], has_cache=has_cache)
            rest = mean_us(measurement.latencies.response) - sum(phases.values())
            of_rounds.append({**phases, REST: max(0.0, rest)})
    names = {name: None for phases in of_rounds for name in phases}
    return {name: median(phases.get(name, 0.0) for phases in of_rounds) for name in names}
