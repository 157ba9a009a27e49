"""The finals: the best candidates and the default are measured again, in rounds.

In each round all finalists are measured in turn, so that drift affects all equally. A finalist that
misses a constraint in most rounds goes to a lower rate, one that misses none to a higher rate.
The default wins unless the best of the others is better in spite of noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Final

from nereid_analyze.goal import THROUGHPUT, Goal
from nereid_analyze.search.trial import CandidateError, Sample, Trial
from nereid_perf.measurement import LoadLevel
from nereid_perf.questions.intervals import Interval, fewest_pairs, paired_ratio
from nereid_perf.questions.levels import RATE
from nereid_perf.questions.max_rate import keeps_up, rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_analyze.search.inner import Evaluation
    from nereid_analyze.search.trial import Search
    from nereid_analyze.space.candidate import Candidate
    from nereid_perf.measurement import Measurement

# Factors for each pass that missed a constraint. After a drift the rate may be far too high.
_LOWER: Final = (0.95, 0.85, 0.7)
_HIGHER: Final = 1.03
_AS_GOOD: Final = 0.98
_CONFIDENCE: Final = 0.9
_SECOND_CONFIDENCE: Final = 0.95
# In fewer rounds, a single one that something else disturbed would decide.
_MORE: Final = 10


@dataclass(frozen=True)
class Finalist:
    """A candidate in the finals; `rate` is the median of `rates`, which has one rate per round.

    kept: number of rounds that kept all constraints.
    """

    candidate: Candidate
    level: LoadLevel
    rate: float
    kept: int
    rates: tuple[float, ...]
    best: Measurement | None
    samples: tuple[Sample, ...]

    @property
    def is_kept(self) -> bool:
        """True if most rounds kept all constraints."""
        return 2 * self.kept > len(self.rates)


@dataclass(frozen=True)
class Outcome:
    """The winner, and the advantage of the best of the rounds over the default.

    winner, best: indices of finalists; if noise may explain the advantage, the winner is the
    default. advantage: how many times better the best is in `metrics`; `None` if it is the default,
    or the default serves no request. level: the load under which both were measured again in turn;
    `None` if the rounds are compared.
    """

    winner: int
    best: int
    metrics: tuple[str, ...] = ()
    advantage: Interval | None = None
    level: LoadLevel | None = None


def run_finals(
    evaluations: Sequence[Evaluation],
    goal: Goal,
    seconds: float,
    rounds: int,
    batch_size: int = 1,
) -> Search[tuple[Finalist, ...]]:
    """Measure the candidates of the evaluations, each at its evaluation's level."""
    found = [
        Finalist(evaluation.candidate, evaluation.level, 0.0, 0, (), None, ())
        for evaluation in evaluations
    ]
    levels = [evaluation.level for evaluation in evaluations]
    missed_before = [False] * len(found)
    waiting = list(range(len(found)))
    for lower in (*_LOWER, None):
        results: dict[int, list[Sample]] = {index: [] for index in waiting}
        for number in range(rounds):
            # Rotate the order, so that no candidate is always measured first.
            for index in waiting[number % len(waiting) :] + waiting[: number % len(waiting)]:
                trial = Trial(found[index].candidate, levels[index], seconds, batch_size)
                try:
                    results[index].append(Sample(trial, (yield trial)))
                except CandidateError:
                    # The candidate was measured before, and merely has fewer rounds.
                    continue
        waiting = []
        for index, samples in results.items():
            shown = _finalist(found[index], samples, goal)
            before = found[index]
            if shown.is_kept or not before.is_kept:
                found[index] = shown
            else:
                # The raised rate was too high, so keep the result at the lower rate.
                found[index] = replace(before, samples=shown.samples)
                continue
            factor = lower
            if shown.is_kept:
                all_kept = shown.kept == len(shown.rates) and not missed_before[index]
                factor = _HIGHER if all_kept and lower is not None else None
            missed_before[index] |= not shown.is_kept
            level = _scaled(levels[index], factor, goal)
            if level != levels[index]:
                levels[index] = level
                waiting.append(index)
        if not waiting:
            break
    return tuple(found)


def decide(
    finalists: Sequence[Finalist], goal: Goal, seconds: float, batch_size: int = 1
) -> Search[Outcome]:
    """Compare the best finalist with the default, which wins if noise may explain the difference.

    Rates that were searched under a target, and a default that keeps none, are not compared as
    rates: both get the load that the best keeps, and their latencies are compared. More rounds
    follow until there are enough for an interval, and once more if that leaves it open.
    """
    default, index = finalists[0], best_of(finalists, goal)
    best = finalists[index]
    if index == 0 or not default.rate:
        return Outcome(index, index)
    compared = Goal({THROUGHPUT: 1.0}) if goal.is_throughput else goal
    level = None
    if goal.is_throughput and (best.level.kind == RATE or not default.is_kept):
        compared, level = Goal({goal.limited_latency: 1.0}), best.level
    trials = [
        Trial(default.candidate, level or default.level, seconds, batch_size),
        Trial(best.candidate, best.level, seconds, batch_size),
    ]
    pairs: list[tuple[Measurement, Measurement]] = []
    if level is None and len(default.samples) == len(best.samples):
        samples = zip(default.samples, best.samples, strict=True)
        pairs = [(before.measurement, after.measurement) for before, after in samples]
    pairs += yield from _measure_pairs(trials, fewest_pairs(_CONFIDENCE) - len(pairs))
    advantage = _advantage(pairs, compared, _CONFIDENCE)
    if advantage.estimate * _AS_GOOD > 1 and not _is_clear(advantage):
        pairs += yield from _measure_pairs(trials, _MORE)
        # The second look is stricter, so that two are no more often wrong than one.
        advantage = _advantage(pairs, compared, _SECOND_CONFIDENCE)
    kept = sum(_is_kept(before, goal) for before, _ in pairs)
    is_better = _is_clear(advantage) and (level is None or 2 * kept <= len(pairs))
    metrics = tuple(compared.objectives)
    return Outcome(index if is_better else 0, index, metrics, advantage, level)


def _measure_pairs(
    trials: Sequence[Trial], rounds: int
) -> Search[list[tuple[Measurement, Measurement]]]:
    """Measure both trials in each round; the first of them takes turns."""
    pairs = []
    for number in range(rounds):
        found: dict[int, Measurement] = {}
        for index in (0, 1) if number % 2 else (1, 0):
            try:
                found[index] = yield trials[index]
            except CandidateError:
                break
        else:
            pairs.append((found[0], found[1]))
    return pairs


def _advantage(
    pairs: Sequence[tuple[Measurement, Measurement]], goal: Goal, confidence: float
) -> Interval:
    ratios = [math.exp(goal.score(after, before)) for before, after in pairs]
    if not ratios:
        return Interval(1.0, None, None)
    return paired_ratio([1.0] * len(ratios), ratios, confidence)


def _is_clear(advantage: Interval) -> bool:
    return advantage.low is not None and advantage.low > 1


def best_of(finalists: Sequence[Finalist], goal: Goal) -> int:
    """Return the index of the best finalist that keeps the constraints, or 0 if none does.

    Among about equally good ones, the one with the fewest changes from the default wins.
    """
    baseline = finalists[0].best
    kept = [index for index, finalist in enumerate(finalists) if finalist.is_kept and finalist.rate]

    def rank(index: int) -> float:
        finalist = finalists[index]
        if goal.is_throughput or baseline is None or finalist.best is None:
            return finalist.rate
        return goal.score(finalist.best, baseline)

    if not goal.is_throughput:
        return max(kept, key=rank, default=0)
    top = max(map(rank, kept), default=0.0)
    default = finalists[0].candidate.choices

    def changes(index: int) -> tuple[int, float]:
        choices = finalists[index].candidate.choices
        return sum(a != b for a, b in zip(choices, default, strict=True)), -rank(index)

    return min((index for index in kept if rank(index) >= top * _AS_GOOD), key=changes, default=0)


def _finalist(before: Finalist, samples: list[Sample], goal: Goal) -> Finalist:
    kept = [sample for sample in samples if _is_kept(sample.measurement, goal)]
    rates = tuple(sample.measurement.requests_per_s for sample in samples)
    shown = next(iter(reversed(kept or samples)), None)
    return Finalist(
        before.candidate,
        samples[0].trial.level if samples else before.level,
        median(rates) if rates else 0.0,
        len(kept),
        rates,
        shown.measurement if shown is not None else None,
        (*before.samples, *samples),
    )


def _scaled(level: LoadLevel, factor: float | None, goal: Goal) -> LoadLevel:
    if factor is None:
        return level
    if level.kind == RATE:
        return LoadLevel(RATE, rounded(level.value * factor))
    if factor > 1 or goal.slo is None:
        return level
    return LoadLevel(level.kind, max(1, int(level.value * factor)))


def _is_kept(measurement: Measurement, goal: Goal) -> bool:
    if not measurement.requests or not goal.is_met(measurement):
        return False
    return measurement.level.kind != RATE or keeps_up(measurement)
