"""The finals: the best candidates and the default are measured again, in rounds.

In each round all finalists are measured in turn, so that drift affects all equally. A finalist that
misses a constraint in most rounds goes to a lower rate, one that misses none to a higher rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Final

from nereid_analyze.search.trial import CandidateError, Sample, Trial
from nereid_perf.measurement import LoadLevel
from nereid_perf.questions.levels import RATE
from nereid_perf.questions.max_rate import keeps_up, rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_analyze.goal import Goal
    from nereid_analyze.search.inner import Evaluation
    from nereid_analyze.search.trial import Search
    from nereid_analyze.space.candidate import Candidate
    from nereid_perf.measurement import Measurement

# Factors for each pass that missed a constraint. After a drift the rate may be far too high.
_LOWER: Final = (0.95, 0.85, 0.7)
_HIGHER: Final = 1.03
_AS_GOOD: Final = 0.98


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
            if factor is not None and levels[index].kind == RATE:
                levels[index] = LoadLevel(RATE, rounded(levels[index].value * factor))
                waiting.append(index)
        if not waiting:
            break
    return tuple(found)


def winner_of(finalists: Sequence[Finalist], goal: Goal) -> int:
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


def _is_kept(measurement: Measurement, goal: Goal) -> bool:
    if not goal.is_met(measurement):
        return False
    return measurement.level.kind != RATE or keeps_up(measurement)
