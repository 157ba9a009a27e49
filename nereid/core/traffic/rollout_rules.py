"""Rules of rollouts, such as errors<0.1% p99<1.1x difference<1e-3, and their other arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ERRORS, DIFFERENCE = "errors", "difference"
# Unit of rules that compare durations.
FACTOR: Final = "x"
# Largest share in percent at which durations are compared with those of versions with the rest.
MAX_COMPARED: Final = 50
_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
# Units by metric.
_UNITS: Final = {ERRORS: ("%",), DIFFERENCE: ("",), **dict.fromkeys(_QUANTILES, (FACTOR, "ms"))}
# Limits of rules by unit, exclusive.
_LIMITS: Final = {"%": (0.0, 100.0), FACTOR: (1.0, 1000.0), "ms": (0.0, 1e12), "": (0.0, 1e12)}
_TERM: Final = re.compile(r"([a-z0-9]+)<([0-9]{1,12}(?:\.[0-9]{0,12})?(?:e-?[0-9]{1,2})?)(%|x|ms|)")
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_RULES_TEXT: Final = 200
_MAX_STEPS: Final = 100
_MAX_EVERY_S: Final = 7 * 86400.0
WHOLE: Final = 100


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. limit: a share, a factor, milliseconds, or the unit of the difference.

    errors: how much larger the share of failed requests may be than that of the versions in
    service. p50, p95, p99: of durations, as a factor (`x`) of theirs, or absolute (`ms`).
    """

    text: str
    metric: str
    limit: float
    unit: str

    @property
    def quantile(self) -> float:
        """Share of the requests below the quantile; only for quantiles."""
        return _QUANTILES[self.metric]


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Return the rules in a text. Raises ValueError with the reason."""
    if len(text) > _MAX_RULES_TEXT:
        raise ValueError(f"expected rules of at most {_MAX_RULES_TEXT} characters")
    rules = tuple(map(_parse_rule, text.split()))
    if not rules:
        raise ValueError("expected rules, such as errors<0.1% p99<1.1x")
    metrics = [rule.metric for rule in rules]
    for metric in metrics:
        if metrics.count(metric) > 1:
            raise ValueError(f"{metric} has two rules")
    return rules


def _parse_rule(text: str) -> Rule:
    match = _TERM.fullmatch(text)
    if match is None or match[1] not in _UNITS:
        raise ValueError(
            f"'{text}': expected errors<N%, p50<Nx or p50<Nms (p95, p99), or difference<N"
        )
    metric, limit, unit = match[1], float(match[2]), match[3]
    if unit not in _UNITS[metric]:
        forms = " or ".join(f"{metric}<{match[2]}{each}" for each in _UNITS[metric])
        raise ValueError(f"'{text}': expected {forms}")
    lowest, highest = _LIMITS[unit]
    if not lowest < limit < highest:
        raise ValueError(f"'{text}': expected a limit between {lowest:g} and {highest:g}{unit}")
    return Rule(text, metric, limit / 100 if unit == "%" else limit, unit)


def check_steps(steps: Sequence[int]) -> tuple[int, ...]:
    """Return steps in percent. Raises ValueError unless they grow to 100."""
    # At 100 percent, the version is compared with the others' requests of the step before.
    if not 1 < len(steps) <= _MAX_STEPS or steps[0] < 1 or steps[-1] != WHOLE:
        raise ValueError("expected several steps in percent that grow to 100, such as 1,10,50,100")
    if any(step <= before for before, step in pairwise(steps)):
        raise ValueError("expected steps that grow")
    return tuple(steps)


def parse_steps(text: str) -> tuple[int, ...]:
    """Return the steps in a text such as 1,10,50,100. Raises ValueError with the reason."""
    parts = text.split(",")
    if not all(re.fullmatch("[0-9]{1,3}", part) for part in parts):
        raise ValueError(f"'{text}': expected steps in percent, such as 1,10,50,100")
    return check_steps([int(part) for part in parts])


def check_every(seconds: float) -> float:
    """Return the least time of a step. Raises ValueError for one that is out of range."""
    if not 0 < seconds <= _MAX_EVERY_S:
        raise ValueError("expected a time above 0, and at most a week")
    return seconds


def parse_duration(text: str) -> float:
    """Return the seconds in a text such as 30s, 5m or 1.5h. Raises ValueError with the reason."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}': expected a time such as 30s, 5m or 1h")
    return check_every(float(match[1]) * _SECONDS[match[2]])
