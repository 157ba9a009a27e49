"""All searches of one model, and what each of them used; measurements are kept in checkpoints."""

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
    """Of one search, without its last comparison of the best: what that is and what it took."""

    name: str
    winner: Evaluation
    candidates: int
    measurements: int
    seconds: float


@dataclass(frozen=True)
class Compared:
    """A winner's rate beside that of the exhaustive search, round by round, in turns."""

    candidate: Candidate
    rate: float
    ratios: tuple[float, ...]


def inner_rules(seconds: float, most_in_flight: int) -> InnerRules:
    """Of all searches alike."""
    return InnerRules(seconds=seconds, most_concurrency=most_in_flight)


class Searches:
    """Of one model. directory: for its checkpoints, from which it goes on."""

    def __init__(self, job: Job, measured: MeasuredModels, directory: Path) -> None:
        self._job = job
        self._measured = measured
        self._directory = directory

    def exhaustive(self) -> Found:
        """Every candidate, each with whole windows."""
        evaluations = self._resolve(EXHAUSTIVE, replace(self._job, mode=EXHAUSTIVE), self._all())
        samples = [each for found in evaluations for each in found.samples]
        best = max(evaluations, key=lambda each: each.rate)
        return _found(EXHAUSTIVE, best, len(evaluations), samples)

    def adaptive(self, seed: int) -> Found:
        """The one of `nereid analyze`."""
        job = replace(self._job, seed=seed)
        result = self._resolve(f"seed-{seed}", job, search_of(job))
        assert isinstance(result, AdaptiveResult), "the job is adaptive"
        winner = result.finalists[result.winner].candidate
        finals = {id(each) for finalist in result.finalists for each in finalist.samples}
        samples = [each for each in result.samples if id(each) not in finals]
        evaluation = next(each for each in result.evaluations if each.candidate == winner)
        return _found(f"seed {seed}", evaluation, len(result.evaluations), samples)

    def compare(
        self, best: Evaluation, others: Sequence[Evaluation], seconds: float, rounds: int
    ) -> dict[Candidate, Compared]:
        """Not kept: what is compared is measured together."""
        distinct = {each.candidate: each for each in (best, *others)}
        search = run_finals([*distinct.values()], self._job.goal, seconds, rounds)
        finalists = resolve(search, self._measured.measure)
        rates = {each.candidate: each for each in finalists}
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
    seconds = sum(each.trial.seconds for each in samples)
    return Found(name, best, candidates, len(samples), seconds)


def _compared(finalist: Finalist, best: Finalist) -> Compared:
    pairs = zip(finalist.rates, best.rates, strict=False)
    return Compared(finalist.candidate, finalist.rate, tuple(a / b for a, b in pairs if b))


def rows(
    found: Sequence[Found], compared: Mapping[Candidate, Compared]
) -> list[dict[str, str | int | float | list[float]]]:
    """A search each, for the table and JSON."""
    whole = found[0]
    return [
        {
            "search": each.name,
            "candidates": each.candidates,
            "measurements": each.measurements,
            "measurements_share": each.measurements / whole.measurements,
            "seconds": each.seconds,
            "seconds_share": each.seconds / whole.seconds,
            "winner": each.winner.candidate.text,
            "rate": compared[each.winner.candidate].rate,
            "ratios": [*compared[each.winner.candidate].ratios],
        }
        for each in found
    ]
