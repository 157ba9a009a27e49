"""Candidates by what their samples show. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_analyze.search.inner import EXACT, Evaluation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid_analyze.goal import Goal
    from nereid_analyze.search.trial import Sample
    from nereid_analyze.space.candidate import Candidate
    from nereid_perf.measurement import Measurement


def evaluation_of(samples: Sequence[Sample], goal: Goal, baseline: Measurement) -> Evaluation:
    """By the best sample that keeps the constraints, else by the best one with a rate of 0."""
    kept = [each for each in samples if goal.is_met(each.measurement)]
    best = max(kept or samples, key=lambda each: goal.score(each.measurement, baseline))
    return Evaluation(
        best.trial.candidate,
        best.measurement.requests_per_s if kept else 0.0,
        best.trial.level,
        EXACT,
        is_raced=False,
        best=best.measurement,
        samples=tuple(samples),
    )


def evaluations_of(
    samples: Iterable[Sample], goal: Goal, baseline: Measurement
) -> list[Evaluation]:
    """Of each candidate, the best first: by its score, those that keep no constraint last."""
    by_candidate: dict[Candidate, list[Sample]] = {}
    for each in samples:
        by_candidate.setdefault(each.trial.candidate, []).append(each)
    found = [evaluation_of(each, goal, baseline) for each in by_candidate.values()]

    def rank(evaluation: Evaluation) -> tuple[bool, float]:
        assert evaluation.best is not None, "each has a sample"
        return evaluation.rate > 0, goal.score(evaluation.best, baseline)

    return sorted(found, key=rank, reverse=True)
