"""Model Analyzer's search modes: brute (all candidates), quick (neighbours) and optuna (TPE)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nereid_analyze.estimate.capacity import filling_concurrency
from nereid_analyze.search.finals import Finalist, Outcome, decide, run_finals
from nereid_analyze.search.ranking import evaluation_of, evaluations_of
from nereid_analyze.search.sweep import SweepRules, sweep
from nereid_analyze.search.trial import CandidateError, Sample, Trial
from nereid_perf.measurement import LoadLevel
from nereid_perf.questions.levels import CONCURRENCY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nereid_analyze.goal import Goal
    from nereid_analyze.search.inner import Evaluation
    from nereid_analyze.search.trial import Search
    from nereid_analyze.space.candidate import Candidate
    from nereid_analyze.space.defaults import ModelDefaults
    from nereid_analyze.space.space import Space
    from nereid_perf.measurement import Measurement

BRUTE: Final = "brute"
QUICK: Final = "quick"
OPTUNA: Final = "optuna"
# Name of optuna's parameter; its value is the exponent of a power of two.
_LEVEL: Final = "concurrency"


@dataclass(frozen=True)
class ModeRules:
    """The rules of the modes; `sweep` is for all candidates in brute, otherwise for the best ones.

    least_share, most_share: bounds of optuna's trials, as shares of the space. patience: trials
    without improvement that end the search. uses_formula: the concurrency is twice the sum of all
    instances' largest batches.
    """

    sweep: SweepRules = field(default_factory=SweepRules)
    seed: int = 0
    tops: int = 3
    sweeps_tops: bool = True
    rounds: int = 3
    least_share: float = 0.05
    most_share: float = 0.10
    least_trials: int = 20
    most_trials: int = 200
    patience: int = 10
    uses_formula: bool = False


@dataclass(frozen=True)
class ModeResult:
    """The result of a mode, with the fields of AdaptiveResult that all searches have."""

    evaluations: tuple[Evaluation, ...]
    finalists: tuple[Finalist, ...]
    outcome: Outcome
    samples: tuple[Sample, ...]

    @property
    def winner(self) -> int:
        """Index of the winner in finalists."""
        return self.outcome.winner


def search_by_mode(
    mode: str,
    space: Space,
    goal: Goal,
    defaults: Mapping[str, ModelDefaults],
    rules: ModeRules,
) -> Search[ModeResult]:
    """Search with a mode; raise CandidateError if the default itself cannot be measured."""
    samples = yield from sweep(space.default, goal, rules.sweep)
    if not samples:
        raise CandidateError("the models' present configuration cannot be measured")
    baseline = evaluation_of(_first_size(samples, rules), goal, samples[0].measurement).best
    assert baseline is not None, "it has samples"
    if mode == BRUTE:
        for candidate in space.all():
            if candidate != space.default:
                samples += yield from sweep(candidate, goal, rules.sweep)
    else:
        search = _Chosen(space, goal, defaults, rules, baseline)
        samples += yield from (search.climb() if mode == QUICK else search.sample())
        if rules.sweeps_tops:
            tops = evaluations_of(_first_size(samples, rules), goal, baseline)[: rules.tops]
            for top in tops:
                if top.candidate != space.default:
                    samples += yield from sweep(top.candidate, goal, rules.sweep)
    ranked = evaluations_of(_first_size(samples, rules), goal, baseline)
    default = next(evaluation for evaluation in ranked if evaluation.candidate == space.default)
    best = [evaluation for evaluation in ranked if evaluation.rate and evaluation is not default][
        : rules.tops
    ]
    seconds, batch_size = rules.sweep.seconds, rules.sweep.batch_sizes[0]
    finalists = yield from run_finals([default, *best], goal, seconds, rules.rounds, batch_size)
    outcome = yield from decide(finalists, goal, seconds, batch_size)
    for finalist in finalists:
        samples += finalist.samples
    return ModeResult(tuple(ranked), finalists, outcome, tuple(samples))


class _Chosen:
    """The modes that measure only a part of the space, each candidate at one level."""

    def __init__(
        self,
        space: Space,
        goal: Goal,
        defaults: Mapping[str, ModelDefaults],
        rules: ModeRules,
        baseline: Measurement,
    ) -> None:
        self._space = space
        self._goal = goal
        self._defaults = defaults
        self._rules = rules
        self._baseline = baseline
        self._samples: list[Sample] = []
        self._scores: dict[Candidate, float] = {}

    def climb(self) -> Search[list[Sample]]:
        """Climb from the smallest values to the best neighbour, until no neighbour is better."""
        at = self._space.default
        for setting in self._space.settings:
            at = at.replaced(setting.model, setting.name, setting.values[0])
        best = yield from self._score(at)
        while True:
            scores = {at: best}
            for neighbour in self._space.neighbours(at):
                scores[neighbour] = yield from self._score(neighbour)
            top = max(scores, key=lambda candidate: scores[candidate])
            if scores[top] <= best:
                return self._samples
            at, best = top, scores[top]

    def sample(self) -> Search[list[Sample]]:
        """Let optuna choose candidates."""
        import optuna  # noqa: PLC0415 (it takes a second, and only this mode needs it)

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=self._rules.seed)
        )
        levels = list(_exponents(self._rules.sweep))
        best, stale = -math.inf, 0
        for number in range(self._trials(len(levels))):
            trial = study.ask()
            candidate = self._space.default
            for setting in self._space.settings:
                index = trial.suggest_int(setting.label, 0, len(setting.values) - 1)
                candidate = candidate.replaced(setting.model, setting.name, setting.values[index])
            value = None
            if not self._rules.uses_formula:
                value = 2 ** trial.suggest_int(_LEVEL, levels[0], levels[-1])
            score = yield from self._score(candidate, value)
            study.tell(trial, max(score, -10.0))
            stale = 0 if score > best else stale + 1
            best = max(best, score)
            if stale >= self._rules.patience and number + 1 >= self._rules.least_trials:
                break
        return self._samples

    def _trials(self, levels: int) -> int:
        rules = self._rules
        size = self._space.size * (1 if rules.uses_formula else levels)
        least = max(rules.least_trials, math.ceil(rules.least_share * size))
        most = min(rules.most_trials, max(least, math.ceil(rules.most_share * size)))
        return max(least, most) if least <= rules.most_trials else rules.most_trials

    def _score(self, candidate: Candidate, value: int | None = None) -> Search[float]:
        """Return the score of one window: -inf if it failed, and low if it missed a constraint."""
        if value is None and candidate in self._scores:
            return self._scores[candidate]
        rules = self._rules.sweep
        level = LoadLevel(CONCURRENCY, value or self._formula(candidate))
        trial = Trial(candidate, level, rules.seconds, rules.batch_sizes[0])
        try:
            sample = Sample(trial, (yield trial))
        except CandidateError:
            self._scores[candidate] = -math.inf
            return -math.inf
        self._samples.append(sample)
        score = self._goal.score(sample.measurement, self._baseline)
        if not self._goal.is_met(sample.measurement):
            score -= 5.0
        self._scores[candidate] = score
        return score

    def _formula(self, candidate: Candidate) -> int:
        rules = self._rules.sweep
        return max(rules.least, min(filling_concurrency(candidate, self._defaults), rules.most))


def _exponents(rules: SweepRules) -> Iterator[int]:
    yield from range(int(math.log2(rules.least)), int(math.log2(rules.most)) + 1)


def _first_size(samples: Iterable[Sample], rules: ModeRules) -> list[Sample]:
    """Return the samples of the first request batch size; the others are only for the tables."""
    return [sample for sample in samples if sample.trial.batch_size == rules.sweep.batch_sizes[0]]
