"""Ranks candidates by their samples."""

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
    """Return an evaluation of the best sample that keeps the constraints, or else a rate of 0."""
    kept = [sample for sample in samples if goal.is_met(sample.measurement)]
    best = max(kept or samples, key=lambda sample: goal.score(sample.measurement, baseline))
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
    """Return the evaluations of all candidates, the best first; those with a rate of 0 are last."""
    by_candidate: dict[Candidate, list[Sample]] = {}
    for sample in samples:
        by_candidate.setdefault(sample.trial.candidate, []).append(sample)
    evaluations = [evaluation_of(own, goal, baseline) for own in by_candidate.values()]

    def rank(evaluation: Evaluation) -> tuple[bool, float]:
        assert evaluation.best is not None, "each has a sample"
        return evaluation.rate > 0, goal.score(evaluation.best, baseline)

    return sorted(evaluations, key=rank, reverse=True)
