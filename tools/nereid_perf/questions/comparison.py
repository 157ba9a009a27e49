"""Compares two servers, or two results: ratios of B to A with confidence intervals.

In each round A and B are measured in turns, so that drift affects both equally. Rounds of two
earlier results cannot be paired.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final, TypeAlias

from nereid_perf.measurement import Measurement
from nereid_perf.questions.intervals import fewest_pairs, paired_ratio, unpaired_ratio
from nereid_perf.questions.metrics import parse_metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid_perf.measurement import LoadLevel
    from nereid_perf.questions.intervals import Interval
    from nereid_perf.questions.metrics import Metric

# With 0.99, one in 33 comparisons of equal servers finds a difference in a judged ratio.
CONFIDENCE: Final = 0.99
# 20 rounds show a difference of 3 % if measurements scatter by 1 % and one in 20 is disturbed.
ROUNDS: Final = 20
COMPARED: Final = ("rate", "p50", "p99", "cpu")
# This figure is not judged. Equal servers have differed by 8 % for minutes: their workers are
# separate processes. Pairing does not help.
_OF_CLIENT: Final = "cpu"
# Gauges with these prefixes are compared.
_GAUGES: Final = ("nv_cpu_utilization", "nv_gpu_utilization")


@dataclass(frozen=True, slots=True)
class Turn:
    """A request to measure a level at one server: `side` is 0 for A, 1 for B."""

    side: int
    level: LoadLevel


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of B to A of one metric. a, b: medians. low, high: the interval, or `None`."""

    metric: str
    a: float
    b: float
    ratio: float
    low: float | None
    high: float | None

    @property
    def is_different(self) -> bool:
        """True if the interval excludes 1; always false for the figure of the load generator."""
        if self.metric == _OF_CLIENT:
            return False
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def interval_text(self) -> str:
        """The interval as text."""
        if self.low is None or self.high is None:
            return "no interval"
        return f"{self.low:.3f} to {self.high:.3f}"

    @property
    def outcome(self) -> str:
        """The outcome as text."""
        if self.metric == _OF_CLIENT:
            return "the client's, not judged"
        return "different" if self.is_different else "not shown to differ"

    def value_text(self, value: float) -> str:
        """Return a value as text, in the metric's unit."""
        if self.metric.startswith(_GAUGES):
            return f"{100 * value:.3g} %"
        return parse_metric(self.metric).text(value)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison at one level of load."""

    level: LoadLevel
    rounds: int
    confidence: float
    is_paired: bool
    ratios: tuple[Ratio, ...]
    note: str = ""


Turns: TypeAlias = Generator[Turn, Measurement, tuple[Comparison, ...]]


def compare(
    levels: Iterable[LoadLevel], rounds: int = ROUNDS, confidence: float = CONFIDENCE
) -> Turns:
    """Yield the turns, and return the comparisons; each level is compared separately."""
    comparisons = []
    for level in levels:
        sides: tuple[list[Measurement], list[Measurement]] = ([], [])
        for number in range(rounds):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                sides[side].append((yield Turn(side, level)))
        comparisons.append(_comparison(level, sides, confidence, is_paired=True))
    return tuple(comparisons)


def compare_results(
    a: Sequence[Measurement], b: Sequence[Measurement], confidence: float = CONFIDENCE
) -> tuple[Comparison, ...]:
    """Compare the levels that both results have; raise ValueError if they have none in common."""
    levels = {
        measurement.level: None
        for measurement in a
        if measurement.level in {other.level for other in b}
    }
    if not levels:
        raise ValueError("the two results have no level of load in common")
    return tuple(
        _comparison(
            level,
            ([x for x in a if x.level == level], [x for x in b if x.level == level]),
            confidence,
            is_paired=False,
        )
        for level in levels
    )


def _comparison(
    level: LoadLevel,
    sides: tuple[list[Measurement], list[Measurement]],
    confidence: float,
    *,
    is_paired: bool,
) -> Comparison:
    between = paired_ratio if is_paired else unpaired_ratio
    ratios, notes = [], []
    for name in (*COMPARED, *_common_gauges((*sides[0], *sides[1]))):
        values = [[_value(name, measurement) for measurement in side] for side in sides]
        a, b = _known_pairs(values) if is_paired else _known(values)
        if a and b:
            ratios.append(_ratio(name, a, b, between(a, b, confidence)))
        left_out = len(values[0]) + len(values[1]) - len(a) - len(b)
        if left_out:
            notes.append(f"{name} without {left_out} measurements that have none")
    rounds = min(len(sides[0]), len(sides[1]))
    if any(ratio.low is None for ratio in ratios):
        needed = max(ROUNDS, fewest_pairs(confidence))
        many = "round allows" if rounds == 1 else "rounds allow"
        notes.append(f"{rounds} {many} no interval: measure with --rounds {needed}")
    if any(measurement.client.is_bottleneck for side in sides for measurement in side):
        notes.append("the client was the bottleneck in at least one round")
    return Comparison(level, rounds, confidence, is_paired, tuple(ratios), "; ".join(notes))


def _known_pairs(values: list[list[float | None]]) -> tuple[list[float], list[float]]:
    """Return the pairs of rounds in which both figures are above 0: others have no ratio."""
    pairs = [(a, b) for a, b in zip(*values, strict=True) if a and b]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _known(values: list[list[float | None]]) -> tuple[list[float], list[float]]:
    return [a for a in values[0] if a], [b for b in values[1] if b]


def _ratio(name: str, a: list[float], b: list[float], interval: Interval) -> Ratio:
    return Ratio(name, median(a), median(b), interval.estimate, interval.low, interval.high)


def _value(name: str, measurement: Measurement) -> float | None:
    gauge = measurement.gauges.get(name)
    return gauge[0] if gauge is not None else _METRICS[name].value(measurement)


def _common_gauges(measurements: Sequence[Measurement]) -> list[str]:
    common = set.intersection(*(set(measurement.gauges) for measurement in measurements))
    return sorted(name for name in common if name.startswith(_GAUGES))


_METRICS: Final[dict[str, Metric]] = {name: parse_metric(name) for name in COMPARED}
