"""Sweeps over levels of load for one candidate, and a bisection, as Model Analyzer does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid_analyze.search.trial import CandidateError, Sample, Trial
from nereid_perf.measurement import LoadLevel
from nereid_perf.questions.levels import CONCURRENCY

if TYPE_CHECKING:
    from nereid_analyze.goal import Goal
    from nereid_analyze.search.trial import Search
    from nereid_analyze.space.candidate import Candidate

# The doubling ends after `_TRIES` levels in a row that do not raise the best rate by `_GAIN`.
_TRIES: Final = 4
_GAIN: Final = 1.05


@dataclass(frozen=True)
class SweepRules:
    """The rules of a sweep; `listed` gives exact levels.

    binary_steps: maximum levels of the bisection. early_exit: end a listed sweep when the rate no
    longer grows.
    """

    seconds: float = 1.0
    kind: str = CONCURRENCY
    least: int = 1
    most: int = 1024
    listed: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = (1,)
    binary_steps: int = 5
    early_exit: bool = False


def sweep(candidate: Candidate, goal: Goal, rules: SweepRules) -> Search[list[Sample]]:
    """Measure the levels; the result is empty if the candidate failed at the first level."""
    samples: list[Sample] = []
    for batch_size in rules.batch_sizes:
        samples += yield from _sweep_batch(candidate, goal, rules, batch_size)
    return samples


def _sweep_batch(
    candidate: Candidate, goal: Goal, rules: SweepRules, batch_size: int
) -> Search[list[Sample]]:
    samples: list[Sample] = []
    values = rules.listed or _doubled(rules.least, rules.most)
    best, without_gain = 0.0, 0
    try:
        for value in values:
            trial = Trial(candidate, LoadLevel(rules.kind, value), rules.seconds, batch_size)
            samples.append(Sample(trial, (yield trial)))
            rate = samples[-1].measurement.requests_per_s
            without_gain = 0 if rate > _GAIN * best else without_gain + 1
            best = max(best, rate)
            if without_gain == _TRIES and (rules.early_exit or not rules.listed):
                break
        if goal.constraints and not rules.listed:
            yield from _search_between(samples, goal, rules)
    except CandidateError:
        return samples
    return samples


def _search_between(found: list[Sample], goal: Goal, rules: SweepRules) -> Search[None]:
    kept = [sample for sample in found if goal.is_met(sample.measurement)]
    low = max((int(sample.trial.level.value) for sample in kept), default=0)
    missed = [int(sample.trial.level.value) for sample in found if sample.trial.level.value > low]
    if not kept or not missed:
        return
    high = min(missed)
    for _ in range(rules.binary_steps):
        middle = (low + high) // 2
        if middle in (low, high):
            return
        first = found[0].trial
        level = LoadLevel(rules.kind, middle)
        trial = Trial(first.candidate, level, rules.seconds, first.batch_size)
        found.append(Sample(trial, (yield trial)))
        if goal.is_met(found[-1].measurement):
            low = middle
        else:
            high = middle


def _doubled(least: int, most: int) -> list[int]:
    values = [least]
    while values[-1] * 2 <= most:
        values.append(values[-1] * 2)
    return values
