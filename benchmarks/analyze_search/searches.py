"""Searches for the best settings of one model, and their costs, with checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from nereid_analyze.checkpoint import Checkpoint
from nereid_analyze.estimate.capacity import filling_concurrency
from nereid_analyze.job import Job, search_of
from nereid_analyze.search.adaptive import AdaptiveResult
from nereid_analyze.search.finals import Finalist, run_finals
from nereid_analyze.search.inner import Evaluation, InnerRules, evaluate
from nereid_analyze.search.trial import Sample, Search, Trial, resolve
from nereid_analyze.space.candidate import Candidate
from nereid_analyze.target.measured_models import MeasuredModels
from nereid_perf.measurement import Measurement

_T = TypeVar("_T")

EXHAUSTIVE = "exhaustive"


@dataclass(frozen=True)
class Found:
    """Result of one search before the final comparison: the best candidate, and the cost."""

    name: str
    winner: Evaluation
    candidates: int
    measurements: int
    seconds: float


@dataclass(frozen=True)
class Compared:
    """Rate of a search's winner, and in each round its ratio to the exhaustive search's winner."""

    candidate: Candidate
    rate: float
    ratios: tuple[float, ...]


def inner_rules(seconds: float, most_in_flight: int) -> InnerRules:
    """Return the rules that all searches share."""
    return InnerRules(seconds=seconds, most_concurrency=most_in_flight)


class Searches:
    """Searches of one model, which resume from the checkpoints in a directory."""

    def __init__(self, job: Job, measured: MeasuredModels, directory: Path) -> None:
        self._job = job
        self._measured = measured
        self._directory = directory

    def exhaustive(self) -> Found:
        """Measure every candidate with whole windows."""
        evaluations = self._resolve(EXHAUSTIVE, replace(self._job, mode=EXHAUSTIVE), self._all())
        samples = [sample for found in evaluations for sample in found.samples]
        best = max(evaluations, key=lambda evaluation: evaluation.rate)
        return _found(EXHAUSTIVE, best, len(evaluations), samples)

    def adaptive(self, seed: int) -> Found:
        """Search as `nereid analyze` does."""
        job = replace(self._job, seed=seed)
        result = self._resolve(f"seed-{seed}", job, search_of(job))
        assert isinstance(result, AdaptiveResult), "the job is adaptive"
        winner = result.finalists[result.winner].candidate
        finals = {id(sample) for finalist in result.finalists for sample in finalist.samples}
        samples = [sample for sample in result.samples if id(sample) not in finals]
        evaluation = next(
            evaluation for evaluation in result.evaluations if evaluation.candidate == winner
        )
        return _found(f"seed {seed}", evaluation, len(result.evaluations), samples)

    def compare(
        self, best: Evaluation, others: Sequence[Evaluation], seconds: float, rounds: int
    ) -> dict[Candidate, Compared]:
        """Measure the best candidates of all searches in turns.

        The result is not kept in a checkpoint, because the candidates must be measured together.
        """
        distinct = {evaluation.candidate: evaluation for evaluation in (best, *others)}
        search = run_finals([*distinct.values()], self._job.goal, seconds, rounds)
        finalists = resolve(search, self._measured.measure)
        rates = {finalist.candidate: finalist for finalist in finalists}
        return {
            candidate: _compared(finalist, rates[best.candidate])
            for candidate, finalist in rates.items()
        }

    def _all(self) -> Search[list[Evaluation]]:
        job, found = self._job, []
        for candidate in job.space.all():
            start = min(filling_concurrency(candidate, job.defaults), job.inner.most_concurrency)
            found.append((yield from evaluate(candidate, job.goal, job.inner, start)))
        return found

    def _resolve(self, name: str, job: Job, search: Search[_T]) -> _T:
        path = self._directory / f"{job.title}-{name}.jsonl"
        with Checkpoint(path, job, resume=True) as checkpoint:
            measure = checkpoint.measure(self._shown)
            return resolve(search, measure)

    def _shown(self, trial: Trial) -> Measurement:
        found = self._measured.measure(trial)
        what = f"{trial.candidate.text}, {trial.level.value:g} in flight, {trial.seconds:g} s"
        print(f"  {what}: {found.requests_per_s:,.0f}/s", flush=True)
        return found


def _found(name: str, best: Evaluation, candidates: int, samples: Sequence[Sample]) -> Found:
    seconds = sum(sample.trial.seconds for sample in samples)
    return Found(name, best, candidates, len(samples), seconds)


def _compared(finalist: Finalist, best: Finalist) -> Compared:
    pairs = zip(finalist.rates, best.rates, strict=False)
    return Compared(finalist.candidate, finalist.rate, tuple(a / b for a, b in pairs if b))


def rows(
    found: Sequence[Found], compared: Mapping[Candidate, Compared]
) -> list[dict[str, str | int | float | list[float]]]:
    """Return a row for each search, for the table and JSON."""
    whole = found[0]
    return [
        {
            "search": search.name,
            "candidates": search.candidates,
            "measurements": search.measurements,
            "measurements_share": search.measurements / whole.measurements,
            "seconds": search.seconds,
            "seconds_share": search.seconds / whole.seconds,
            "winner": search.winner.candidate.text,
            "rate": compared[search.winner.candidate].rate,
            "ratios": [*compared[search.winner.candidate].ratios],
        }
        for search in found
    ]
