"""Conditions that make a run fail, for scripts that check the exit code: --fail-if 'p99>20ms'."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from nereid_perf.questions.metrics import parse_metric, parse_quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nereid_perf.measurement import Measurement
    from nereid_perf.questions.comparison import Comparison
    from nereid_perf.questions.metrics import Metric

_CONDITION: Final = re.compile(r"\s*([a-z_0-9.]+?)(_ratio)?\s*(<=|>=|<|>)\s*(.+?)\s*")
_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a figure; if is_ratio is true, on the ratio of B's figure to A's."""

    text: str
    metric: Metric
    sign: str
    limit: float
    is_ratio: bool = False

    def holds(self, value: float) -> bool:
        """Return whether the condition holds for a value."""
        return _OPERATORS[self.sign](value, self.limit)


def parse_condition(text: str) -> Condition:
    """Parse p99>20ms, rate<1000, errors>1% or p99_ratio>1.05. May raise ValueError."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ValueError("expected a metric, <, <=, > or >=, and a limit: 'p99>20ms'")
    name, ratio, sign, limit = match.groups()
    metric = parse_metric(name)
    if not ratio:
        return Condition(text, metric, sign, parse_quantity(limit, metric.unit))
    try:
        return Condition(text, metric, sign, float(limit), is_ratio=True)
    except ValueError:
        raise ValueError(f"'{limit}': expected a ratio, such as 1.05") from None


def violations(
    conditions: Sequence[Condition],
    measurements: Sequence[Measurement],
    comparisons: Sequence[Comparison] = (),
) -> list[str]:
    """Return a line for each condition that holds, and for each figure that is not known.

    A figure is the median of a level's rounds. A ratio is the interval's end nearer to 1, so that
    noise alone does not make a run fail.
    """
    broken = []
    for condition in conditions:
        if condition.is_ratio:
            broken += _violated_ratios(condition, comparisons)
            continue
        for level in dict.fromkeys(measurement.level for measurement in measurements):
            rounds = [
                condition.metric.value(measurement)
                for measurement in measurements
                if measurement.level == level
            ]
            known = [measurement for measurement in rounds if measurement is not None]
            where = f"{condition.text} at {level.kind} {level.value:g}"
            if len(known) < len(rounds):
                broken.append(f"{where}: not measured")
            elif condition.holds(value := median(known)):
                broken.append(f"{where}: it is {condition.metric.text(value)}")
    return broken


def _violated_ratios(condition: Condition, comparisons: Sequence[Comparison]) -> list[str]:
    values = []
    for comparison in comparisons:
        ratios = [ratio for ratio in comparison.ratios if ratio.metric == condition.metric.name]
        if not ratios:
            values.append(f"{condition.text}: not compared")
        for ratio in ratios:
            near = ratio.low if condition.sign.startswith(">") else ratio.high
            if near is not None and condition.holds(near):
                values.append(f"{condition.text}: it is {ratio.ratio:.3f}, {ratio.interval_text}")
    return values or ([] if comparisons else [f"{condition.text}: nothing was compared"])
