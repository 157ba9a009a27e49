"""Finds the highest rate at which a server keeps an SLO, by bisection with confirmation.

The load is an open loop, so that it shows if a server falls behind. Measurements are noisy: a rate
is met if k of n measurements meet it. On the way up one measurement decides, and the result is
confirmed.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nereid_perf.measurement import LoadLevel
from nereid_perf.questions.levels import RATE
from nereid_perf.questions.metrics import attempts

if TYPE_CHECKING:
    from collections.abc import Generator

    from nereid_perf.measurement import Measurement
    from nereid_perf.questions.question import Question
    from nereid_perf.questions.slo import Slo

    Steps = Generator[LoadLevel, Measurement, "bool"]

# From this share of the intended rate, the server and the client keep up. Low latencies alone do
# not show that in short windows.
_KEEPS_UP: Final = 0.9
# By chance, a rate falls short by up to this many standard deviations of a Poisson count.
_SCATTER: Final = 3.0


class RateOutcome(enum.Enum):
    """Reason why the search ended."""

    FOUND = "found"
    NONE = "not even the lowest rate keeps the SLO"
    CEILING = "the highest rate allowed keeps the SLO"
    CLIENT = "the client was the bottleneck: the server may keep the SLO at more"
    UNSETTLED = "not settled within the measurements allowed"


@dataclass(frozen=True, slots=True)
class SearchRules:
    """The rules of the search; a rate is met if `needed` of `votes` measurements meet it."""

    start: float = 100.0
    least: float = 0.1
    most: float = 1e6
    precision: float = 0.02
    needed: int = 2
    votes: int = 3
    most_measurements: int = 60


@dataclass(frozen=True, slots=True)
class MaxRate:
    """The result of the search; rate 0 means that no rate kept the SLO.

    missed_at: the lowest missed rate. goodput: mean requests per second within the SLO at `rate`.
    """

    slo: str
    outcome: RateOutcome
    rate: float
    missed_at: float | None
    goodput: float
    confirmed_by: int
    measurements: tuple[Measurement, ...]

    @property
    def is_limited_by_client(self) -> bool:
        """True if the load generator, not the server, limits the rate."""
        return self.outcome is RateOutcome.CLIENT


def find_max_rate(slo: Slo, rules: SearchRules | None = None) -> Question[MaxRate]:
    """Search for the highest rate; yield open-loop levels to measure."""
    return _Search(slo, rules or SearchRules()).run()


class _Ended(Exception):
    def __init__(self, outcome: RateOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class _Search:
    def __init__(self, slo: Slo, rules: SearchRules) -> None:
        self._slo = slo
        self._rules = rules
        self._met: Counter[float] = Counter()
        self._missed: Counter[float] = Counter()
        self._missed_by_client: Counter[float] = Counter()
        self._measurements: list[Measurement] = []
        # The highest met rate, and the lowest missed rate above it.
        self._low: float | None = None
        self._high: float | None = None

    def run(self) -> Question[MaxRate]:
        """Yield levels until the search has ended."""
        outcome = RateOutcome.FOUND
        try:
            yield from self._bracket()
            while not (yield from self._settle()):
                pass
        except _Ended as end:
            outcome = end.outcome
        return self._result(outcome)

    def _bracket(self) -> Generator[LoadLevel, Measurement, None]:
        """Double the rate until it is missed, or halve it until it is met."""
        rules = self._rules
        rate = min(max(rules.start, rules.least), rules.most)
        if not (yield from self._is_met(rate, 1)):
            yield from self._descend(rate, 2.0, 1)
            return
        while rate < rules.most:
            rate = min(rate * 2, rules.most)
            if not (yield from self._is_met(rate, 1)):
                return

    def _settle(self) -> Steps:
        """Bisect the bracket and confirm its lower end; return False if that fails."""
        rules = self._rules
        low, high = self._low, self._high
        assert low is not None, "a bracket has a lower end, or the search has ended"
        while high is not None and high / low > 1 + rules.precision:
            middle = rounded(math.sqrt(low * high))
            if not low < middle < high:
                break
            yield from self._is_met(middle, rules.needed)
            low, high = self._low, self._high
            assert low is not None, "the middle is above it"
        if not (yield from self._is_met(low, rules.needed)):
            yield from self._descend(low, 1 + 2 * rules.precision, rules.needed)
            return False
        if high is None:
            raise _Ended(RateOutcome.CEILING)
        return True

    def _descend(
        self, rate: float, factor: float, needed: int
    ) -> Generator[LoadLevel, Measurement, None]:
        """Go down in ever larger steps until a rate is met."""
        while rate > self._rules.least:
            rate = max(rounded(rate / factor), self._rules.least)
            if (yield from self._is_met(rate, needed)):
                return
            factor *= factor
        raise _Ended(RateOutcome.NONE)

    def _is_met(self, rate: float, needed: int) -> Steps:
        """Measure at a rate until it counts as met or missed, and adjust the bracket."""
        rules = self._rules
        while self._met[rate] < needed and self._missed[rate] <= rules.votes - rules.needed:
            if len(self._measurements) == rules.most_measurements:
                raise _Ended(RateOutcome.UNSETTLED)
            measurement = yield LoadLevel(RATE, rate)
            self._measurements.append(measurement)
            if self._slo.is_met(measurement) and keeps_up(measurement):
                self._met[rate] += 1
            else:
                self._missed[rate] += 1
                self._missed_by_client[rate] += self._is_by_client(measurement)
        is_met = self._met[rate] >= needed
        # The client must have caused most misses: a single one may have another reason.
        if not is_met and 2 * self._missed_by_client[rate] > self._missed[rate]:
            raise _Ended(RateOutcome.CLIENT)
        if is_met:
            self._low = rate
        else:
            self._high = rate
            if self._low is not None and self._low >= rate:
                self._low = None
        return is_met

    def _is_by_client(self, measurement: Measurement) -> bool:
        """Return whether the client was the bottleneck, and service times keep the SLO."""
        latencies = replace(measurement.latencies, response=measurement.latencies.service)
        by_server = replace(measurement, latencies=latencies)
        return measurement.client.is_bottleneck and self._slo.is_met(by_server)

    def _result(self, outcome: RateOutcome) -> MaxRate:
        rate = self._low or 0.0
        at_rate = [
            measurement for measurement in self._measurements if measurement.level.value == rate
        ]
        goodput = sum(map(self._slo.goodput, at_rate)) / max(len(at_rate), 1)
        return MaxRate(
            self._slo.text,
            outcome,
            rate,
            self._high,
            goodput,
            self._met[rate],
            tuple(self._measurements),
        )


def keeps_up(measurement: Measurement) -> bool:
    """Return whether about as many requests ended as the schedule wanted to send."""
    expected = measurement.level.value * measurement.duration_s
    return attempts(
        measurement
    ) + measurement.cancelled >= _KEEPS_UP * expected - _SCATTER * math.sqrt(expected)


def rounded(rate: float) -> float:
    """Round to four significant digits, so that levels are easy to read."""
    return float(f"{rate:.4g}")
