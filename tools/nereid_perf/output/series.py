"""Measurements as charts show them: one point for each level of each server. Knows no chart."""

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
    """Medians over the level's rounds; values_us and counts of all rounds together.

    phases_us: the server's time of a request by phase, and the rest of the client's mean.
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
        return level_label(self.level)


def level_label(level: LoadLevel) -> str:
    """4 in flight."""
    kind = _KINDS.get(level.kind)
    return "trace" if kind is None else f"{level.value:g}{kind}"


def level_figures(server: MeasuredServer, percentile: float) -> list[LevelFigures]:
    """By increasing load; without levels at which nothing ended well."""
    rounds: dict[LoadLevel, list[Measurement]] = {}
    for measurement in server.measurements:
        if measurement.requests:
            rounds.setdefault(measurement.level, []).append(measurement)
    levels = sorted(rounds, key=lambda level: (level.kind, level.value))
    return [_figures(level, rounds[level], percentile) for level in levels]


def percentile_curve(figures: LevelFigures) -> tuple[list[float], list[float]]:
    """Percentiles, denser towards 100, up to what so many requests can say; and their latencies."""
    total = int(figures.counts.sum())
    nines = np.linspace(0, np.log10(max(total, 2)), 80)
    shares = np.unique(np.append(1 - 10**-nines, 0.5))
    below = np.cumsum(figures.counts)
    places = np.searchsorted(below, np.minimum(shares * total, total))
    return (shares * 100).tolist(), figures.values_us[places].tolist()


def histogram_shares(
    series: Sequence[LevelFigures], bins: int = 60
) -> tuple[list[float], list[list[float]]]:
    """Edges of bins that grow by a factor, and the share of each level's requests in each bin."""
    low = min(float(each.values_us[0]) for each in series)
    high = max(float(each.values_us[-1]) for each in series)
    edges = np.geomspace(max(low, 1e-3) * 0.99, high * 1.01, bins + 1)
    shares = []
    for each in series:
        counts, _ = np.histogram(each.values_us, edges, weights=each.counts)
        shares.append((counts / each.counts.sum()).tolist())
    return edges.tolist(), shares


def _figures(level: LoadLevel, rounds: list[Measurement], percentile: float) -> LevelFigures:
    recorded = [recorded_us(each.latencies.response) for each in rounds]
    values, places = np.unique(np.concatenate([each for each, _ in recorded]), return_inverse=True)
    counts = np.bincount(places, np.concatenate([each for _, each in recorded]))
    return LevelFigures(
        level,
        len(rounds),
        median(each.requests_per_s for each in rounds),
        median(percentile_us(each.latencies.response, 50) for each in rounds),
        median(percentile_us(each.latencies.response, percentile) for each in rounds),
        values,
        counts.astype(np.int64),
        _phases(rounds),
    )


def _phases(rounds: list[Measurement]) -> dict[str, float]:
    of_rounds = []
    for each in rounds:
        if each.server:
            has_cache = each.server[0].cache_hits + each.server[0].cache_misses > 0
            phases = phases_us(each.server[0], has_cache=has_cache)
            rest = mean_us(each.latencies.response) - sum(phases.values())
            of_rounds.append({**phases, REST: max(0.0, rest)})
    names = {name: None for phases in of_rounds for name in phases}
    return {name: median(phases.get(name, 0.0) for phases in of_rounds) for name in names}
