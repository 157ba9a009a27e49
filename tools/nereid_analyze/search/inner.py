"""The best load of one candidate: the highest rate within a target, or the best concurrency.

A race in short windows first drops bad candidates. With a target, the search is then that of
`nereid perf --find-max-rate`; otherwise the concurrency doubles until the rate no longer grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid_analyze.search.trial import CandidateError, Sample, Trial
from nereid_perf.measurement import LoadLevel
from nereid_perf.questions.levels import CONCURRENCY, RATE
from nereid_perf.questions.max_rate import SearchRules, find_max_rate, rounded
from nereid_perf.questions.metrics import attempts, error_share

if TYPE_CHECKING:
    from collections.abc import Generator

    from nereid_analyze.goal import Goal
    from nereid_analyze.search.trial import Search
    from nereid_analyze.space.candidate import Candidate
    from nereid_perf.measurement import Measurement
    from nereid_perf.questions.slo import Slo

# Minimum gain, as a factor, that is worth doubling the load again.
_GAIN: Final = 1.03
# Shares of the best rate to reach in a race's first and second window.
_RACE: Final = (0.85, 0.95)
# A race checks the target at this share of the best rate, so that noise does not end the race.
_RACED: Final = 0.9
# Standard deviation of the rate's logarithm: `ROUGH` for a race, `EXACT` for whole windows.
ROUGH: Final = 0.08
EXACT: Final = 0.025
_MAX_ERRORS: Final = 0.01
_MIN_SECONDS: Final = 0.25


@dataclass(frozen=True)
class InnerRules:
    """The rules of the search; `seconds` is the length of a whole window."""

    seconds: float = 1.0
    precision: float = 0.05
    needed: int = 2
    votes: int = 3
    least_concurrency: int = 1
    most_concurrency: int = 1024
    most_measurements: int = 24


@dataclass(frozen=True)
class Evaluation:
    """The result for a candidate; `rate` is 0 if no rate keeps the constraints.

    deviation: standard deviation of the log rate. is_raced: a race ended the evaluation, so the
    rate is an estimate below the best. failure: why there is no measurement.
    """

    candidate: Candidate
    rate: float
    level: LoadLevel
    deviation: float
    is_raced: bool
    best: Measurement | None
    samples: tuple[Sample, ...]
    failure: str = ""


def evaluate(
    candidate: Candidate,
    goal: Goal,
    rules: InnerRules,
    start: float,
    best_rate: float = 0.0,
) -> Search[Evaluation]:
    """Search for the best load, near `start`: a rate with a target, otherwise a concurrency.

    best_rate: rate to beat in a race; 0 means no race.
    """
    inner = _Inner(candidate, goal, rules)
    try:
        if goal.slo is not None:
            return (yield from inner.under_target(goal.slo, start, best_rate))
        return (yield from inner.unlimited(start, best_rate))
    except CandidateError as error:
        return inner.ended(0.0, LoadLevel(CONCURRENCY, 1), None, failure=str(error))


class _Inner:
    def __init__(self, candidate: Candidate, goal: Goal, rules: InnerRules) -> None:
        self._candidate = candidate
        self._goal = goal
        self._rules = rules
        self._samples: list[Sample] = []

    def under_target(self, slo: Slo, start: float, best_rate: float) -> Search[Evaluation]:
        rules = self._rules
        if best_rate:
            for share, least in zip((0.25, 0.5), _RACE, strict=True):
                level = LoadLevel(RATE, rounded(_RACED * best_rate))
                found = yield from self._measure(level, share)
                if slo.is_met(found):
                    break
                reached = attempts(found) / found.duration_s
                if reached < least * level.value or share == 0.5:
                    # The rate that the candidate reached is an upper bound.
                    return self.ended(min(reached, level.value), level, found, raced=True)
            start = best_rate
        search = find_max_rate(
            slo,
            SearchRules(
                start=max(rounded(start), 0.1),
                precision=rules.precision,
                needed=rules.needed,
                votes=rules.votes,
                most_measurements=rules.most_measurements,
            ),
        )
        try:
            level = next(search)
            while True:
                level = search.send((yield from self._measure(level)))
        except StopIteration as end:
            result = end.value
        level = LoadLevel(RATE, result.rate)
        at_rate = [sample.measurement for sample in self._samples if sample.trial.level == level]
        # The search has checked the target, but not the other constraints, such as memory.
        kept = [measurement for measurement in at_rate if self._goal.is_met(measurement)]
        best = next(iter(reversed(kept or at_rate)), None)
        rate = result.rate if best is not None and self._others_kept(best) else 0.0
        return self.ended(rate, level, best)

    def unlimited(self, start: float, best_rate: float) -> Search[Evaluation]:
        rules = self._rules
        least, most = rules.least_concurrency, rules.most_concurrency
        value = min(max(round(start), least), most)
        if best_rate:
            for share, bound in zip((0.25, 0.5), _RACE, strict=True):
                level = LoadLevel(CONCURRENCY, value)
                measurement = yield from self._measure(level, share)
                if measurement.requests_per_s >= bound * best_rate:
                    break
                if share == 0.5 or measurement.requests_per_s < _RACE[0] * best_rate:
                    return self.ended(measurement.requests_per_s, level, measurement, raced=True)
        measured = {value: (yield from self._measure(LoadLevel(CONCURRENCY, value)))}
        for factor in (2.0, 0.5):
            at = value
            while least <= (beside := min(max(round(at * factor), least), most)) <= most:
                if beside in measured:
                    break
                measured[beside] = yield from self._measure(LoadLevel(CONCURRENCY, beside))
                gain = self._rate(measured[beside]) / max(self._rate(measured[at]), 1e-9)
                at = beside
                # Go upwards while the rate gains enough, and downwards while it loses little.
                if gain < (_GAIN if factor > 1 else 1 / _GAIN):
                    break
        top = max(map(self._rate, measured.values()))
        # The lowest of the equally good levels has the lowest latency.
        at = min(
            level
            for level, measurement in measured.items()
            if self._rate(measurement) >= top / _GAIN
        )
        return self.ended(
            top and self._rate(measured[at]), LoadLevel(CONCURRENCY, at), measured[at]
        )

    def ended(
        self,
        rate: float,
        level: LoadLevel,
        best: Measurement | None,
        *,
        raced: bool = False,
        failure: str = "",
    ) -> Evaluation:
        return Evaluation(
            self._candidate,
            rate,
            level,
            ROUGH if raced else EXACT,
            raced,
            best,
            tuple(self._samples),
            failure,
        )

    def _measure(
        self, level: LoadLevel, share: float = 1.0
    ) -> Generator[Trial, Measurement, Measurement]:
        seconds = max(self._rules.seconds * share, min(_MIN_SECONDS, self._rules.seconds))
        trial = Trial(self._candidate, level, seconds)
        measurement = yield trial
        self._samples.append(Sample(trial, measurement))
        return measurement

    def _rate(self, measurement: Measurement) -> float:
        if error_share(measurement) > _MAX_ERRORS or not self._goal.is_met(measurement):
            return 0.0
        return measurement.requests_per_s

    def _others_kept(self, measurement: Measurement) -> bool:
        """Return whether a measurement keeps all constraints except those on latencies."""
        return all(
            constraint.is_kept(measurement)
            for constraint in self._goal.constraints
            if "latency" not in constraint.metric and "time_to" not in constraint.metric
        )
