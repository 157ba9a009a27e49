"""What must not be, for scripts that go by the exit status: --fail-if 'p99>20ms'."""

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
    """is_ratio: of B's figure to A's, in a comparison."""

    text: str
    metric: Metric
    sign: str
    limit: float
    is_ratio: bool = False

    def holds(self, value: float) -> bool:
        return _OPERATORS[self.sign](value, self.limit)


def parse_condition(text: str) -> Condition:
    """p99>20ms, rate<1000, errors>1%, or of a comparison p99_ratio>1.05. Raises ValueError."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ValueError("expected a metric, <, <=, > or >=, and a limit: 'p99>20ms'")
    name, ratio, sign, limit = found.groups()
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
    """What holds of that must not, a line each. A figure that is not known is such a line as well.

    Of a level that was measured several times the median counts, of a ratio the near end of its
    interval: noise alone fails nothing.
    """
    found = []
    for condition in conditions:
        if condition.is_ratio:
            found += _violated_ratios(condition, comparisons)
            continue
        for level in dict.fromkeys(each.level for each in measurements):
            rounds = [condition.metric.value(each) for each in measurements if each.level == level]
            known = [each for each in rounds if each is not None]
            where = f"{condition.text} at {level.kind} {level.value:g}"
            if len(known) < len(rounds):
                found.append(f"{where}: not measured")
            elif condition.holds(value := median(known)):
                found.append(f"{where}: it is {condition.metric.text(value)}")
    return found


def _violated_ratios(condition: Condition, comparisons: Sequence[Comparison]) -> list[str]:
    found = []
    for comparison in comparisons:
        ratios = [each for each in comparison.ratios if each.metric == condition.metric.name]
        if not ratios:
            found.append(f"{condition.text}: not compared")
        for each in ratios:
            near = each.low if condition.sign.startswith(">") else each.high
            if near is not None and condition.holds(near):
                found.append(f"{condition.text}: it is {each.ratio:.3f}, {each.interval_text}")
    return found or ([] if comparisons else [f"{condition.text}: nothing was compared"])
