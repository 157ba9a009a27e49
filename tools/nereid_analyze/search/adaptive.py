"""Nereid's own search, which uses a model of all candidates to choose what to measure.

1. Requests of several batch sizes, one at a time, show the models' batch times.
2. The default is evaluated, then a few candidates far from each other.
3. The candidate with the largest expected gain is next, until the search is sure of the best.
4. Settings of the best candidate that gain nothing go back to the default's values.
5. The best three are measured again, together with the default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from nereid_analyze.estimate.batch_times import BatchTimes, fit_batch_times
from nereid_analyze.estimate.capacity import Capacity, filling_concurrency
from nereid_analyze.estimate.rates import Correction, Rates, fit_correction
from nereid_analyze.search.finals import Finalist, Outcome, decide, run_finals
from nereid_analyze.search.inner import EXACT, Evaluation, InnerRules, evaluate
from nereid_analyze.search.trial import CandidateError, Sample, Trial
from nereid_analyze.space.candidate import INSTANCES, MAX_BATCH
from nereid_perf.distribution import mean_us
from nereid_perf.measurement import LoadLevel
from nereid_perf.questions.levels import CONCURRENCY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from nereid_analyze.goal import Goal
    from nereid_analyze.search.trial import Search
    from nereid_analyze.space.candidate import Candidate, Value
    from nereid_analyze.space.defaults import ModelDefaults
    from nereid_analyze.space.space import Space
    from nereid_perf.measurement import Measurement

# Candidates within this relative distance of the best count as equally good.
_NEAR: Final = 0.05
_DRAWS: Final = 400
# Candidates whose rates are drawn. More would take too long.
_DRAWN: Final = 150
# Candidates that are spread out before expected gains decide.
_SPREAD: Final = 6
# Maximum share of a small space that is evaluated; _MIN_CANDIDATES may be evaluated anyway.
_SHARE: Final = 0.2
_MIN_CANDIDATES: Final = 10
# Share of a setting's range. Within it, neighbours of a failed candidate probably fail too.
_NEARNESS: Final = 0.15
# Log rates that differ by less count as equal.
_EQUAL: Final = 0.02
# Assumed rate of candidates without one, as a share of the best.
_FLOOR: Final = 0.05


@dataclass(frozen=True)
class AdaptiveRules:
    """The rules of the search.

    gain: expected relative gain that is worth another evaluation. sureness: probability, at which
    the search ends, that no other candidate is more than 5 % better. pool: maximum number of
    candidates.
    """

    inner: InnerRules = field(default_factory=InnerRules)
    seed: int = 0
    most_candidates: int = 40
    gain: float = 0.005
    sureness: float = 0.9
    finalists: int = 3
    rounds: int = 3
    pool: int = 1500


@dataclass(frozen=True)
class Effect:
    """The effect of one setting; `rates` has (value, estimated rate, relative deviation)."""

    model: str
    name: str
    rates: tuple[tuple[Value, float, float], ...]

    @property
    def span(self) -> float:
        """Ratio of the best value's rate to the worst value's."""
        rates = [rate for _, rate, _ in self.rates]
        return max(rates) / min(rates)


@dataclass(frozen=True)
class AdaptiveResult:
    """The result of the search; the default is the first of the finalists.

    sureness: probability that no candidate is more than 5 % better. miss: typical relative error of
    predicted rates.
    """

    evaluations: tuple[Evaluation, ...]
    finalists: tuple[Finalist, ...]
    outcome: Outcome
    times: Mapping[str, BatchTimes]
    capacity: Capacity
    sureness: float
    miss: float
    effects: tuple[Effect, ...]
    samples: tuple[Sample, ...]

    @property
    def winner(self) -> int:
        """Index of the winner in finalists."""
        return self.outcome.winner


def most_evaluations(space: Space, most_candidates: int) -> int:
    """Return how many candidates the search evaluates at most, before it simplifies the best."""
    share = max(_MIN_CANDIDATES, math.ceil(space.size * _SHARE))
    return min(most_candidates, share, space.size)


def search_adaptively(
    space: Space, goal: Goal, defaults: Mapping[str, ModelDefaults], rules: AdaptiveRules
) -> Search[AdaptiveResult]:
    """Search; `defaults` has the models in the order in which a request passes them."""
    return (yield from _Adaptive(space, goal, defaults, rules).run())


class _Adaptive:
    def __init__(
        self,
        space: Space,
        goal: Goal,
        defaults: Mapping[str, ModelDefaults],
        rules: AdaptiveRules,
    ) -> None:
        self._space = space
        self._goal = goal
        self._defaults = defaults
        self._rules = rules
        self._random = np.random.default_rng(rules.seed)
        self._evaluations: dict[Candidate, Evaluation] = {}
        self._points: dict[str, list[tuple[float, float]]] = {model: [] for model in defaults}
        self._probes: list[Sample] = []
        self._single_us = 1000.0
        self._misses: list[float] = []
        self._capacity = Capacity({}, defaults, goal.target_us)
        self._noise = EXACT
        # The correction is `None` until it is fitted to all measurements so far.
        self._fitted: Correction | None = None

    def run(self) -> Search[AdaptiveResult]:
        rules, space = self._rules, self._space
        yield from self._probe()
        self._refit()
        yield from self._evaluate(space.default)
        default = yield from self._saturated(space.default)
        pool = space.sample(rules.pool, self._random)
        yield from self._spread(pool)
        while len(self._evaluations) < most_evaluations(space, rules.most_candidates):
            self._refit()
            candidate = self._next(pool)
            if candidate is None:
                break
            yield from self._evaluate(candidate)
        self._refit()
        yield from self._simplify()
        ranked = self._ranked(without=space.default)[: rules.finalists]
        contestants = [default, *ranked]
        finalists = yield from run_finals(
            contestants, self._goal, rules.inner.seconds, rules.rounds
        )
        self._learn_finals(finalists)
        outcome = yield from decide(finalists, self._goal, rules.inner.seconds)
        return self._result(finalists, outcome, pool)

    def _saturated(self, candidate: Candidate) -> Search[Evaluation]:
        """Measure a candidate that keeps no rate at its saturation, so that it can be compared."""
        evaluation = self._evaluations[candidate]
        if self._goal.slo is None or evaluation.rate or evaluation.failure:
            return evaluation
        most = filling_concurrency(candidate, self._defaults)
        level = LoadLevel(CONCURRENCY, min(most, self._rules.inner.most_concurrency))
        trial = Trial(candidate, level, self._rules.inner.seconds)
        try:
            sample = Sample(trial, (yield trial))
        except CandidateError:
            return evaluation
        samples = (*evaluation.samples, sample)
        return replace(evaluation, level=level, best=sample.measurement, samples=samples)

    def _simplify(self) -> Search[None]:
        """Evaluate the best again, with the default's values for settings without a gain."""
        ranked = self._ranked(without=self._space.default)
        if not ranked:
            return
        simple = best = ranked[0].candidate
        for model, name, value in self._space.default.choices:
            other = best.replaced(model, name, value)
            if other != best:
                rates = self._rates([other, best])
                if rates.mean[0] >= rates.mean[1] - _EQUAL:
                    simple = simple.replaced(model, name, value)
        if simple not in self._evaluations:
            yield from self._evaluate(simple)
            self._refit()

    def _probe(self) -> Search[None]:
        """Measure batch times, with one request in flight."""
        candidate, largest = self._probed()
        size, rules = 1, self._rules.inner
        while size <= largest:
            level = LoadLevel(CONCURRENCY, 1)
            trial = Trial(candidate, level, max(rules.seconds / 4, 0.25), batch_size=size)
            try:
                measurement = yield trial
            except CandidateError:
                # Larger requests would fail too. The default's evaluation shows what is wrong.
                return
            self._probes.append(Sample(trial, measurement))
            if size == 1:
                self._single_us = mean_us(measurement.latencies.service)
            self._learn_times(measurement, size)
            size = largest if size < largest < size * 4 else size * 4

    def _probed(self) -> tuple[Candidate, int]:
        """Return the default with one instance and the largest batches, and their common size."""
        candidate, largest = self._space.default, []
        varied = {(setting.model, setting.name): setting for setting in self._space.settings}
        for model, default in self._defaults.items():
            most = default.max_batch
            batches = varied.get((model, MAX_BATCH))
            if batches is not None and isinstance(batches.values[-1], int):
                most = batches.values[-1]
                candidate = candidate.replaced(model, MAX_BATCH, most)
            instances = varied.get((model, INSTANCES))
            if instances is not None and 1 in instances.values:
                candidate = candidate.replaced(model, INSTANCES, 1)
            largest.append(most)
        return candidate, max(1, min(largest, default=1))

    def _learn_times(self, measurement: Measurement, size: int) -> None:
        known = False
        for split in measurement.server:
            phases = (split.compute_input_us, split.compute_infer_us, split.compute_output_us)
            if split.model in self._points and split.compute_infer_us is not None:
                self._points[split.model].append((size, sum(filter(None, phases))))
                known = True
        if not known and len(self._points) == 1:
            # Without statistics of the server, the whole response time counts.
            us = mean_us(measurement.latencies.service)
            next(iter(self._points.values())).append((size, us))

    def _evaluate(self, candidate: Candidate) -> Search[Evaluation]:
        best = max((evaluation.rate for evaluation in self._evaluations.values()), default=0.0)
        predicted = self._capacity.rate(candidate) if self._capacity.times else 0.0
        found = yield from evaluate(
            candidate, self._goal, self._rules.inner, self._start(candidate, predicted), best
        )
        self._evaluations[candidate] = found
        self._fitted = None
        if predicted and found.rate:
            self._misses.append(abs(math.log(found.rate / predicted)))
        return found

    def _start(self, candidate: Candidate, predicted: float) -> float:
        """Return where the inner search begins: a rate, or a number of requests in flight."""
        if self._goal.slo is not None:
            # Far from measured candidates the prediction may be much too high, and an overload
            # disturbs later measurements. The rate of one request at a time is known to be
            # possible.
            measured = [
                evaluation.rate for evaluation in self._evaluations.values() if evaluation.rate
            ]
            least = 1e6 / max(self._single_us, 1.0)
            most = 2 * max(measured, default=least)
            return min(max(predicted, least / 2), most)
        most = filling_concurrency(candidate, self._defaults)
        return min(most, self._rules.inner.most_concurrency)

    def _learn_finals(self, finalists: Sequence[Finalist]) -> None:
        """Learn from the finals, whose rates show how exact the earlier rates are."""
        misses = []
        for finalist in finalists:
            evaluation = self._evaluations[finalist.candidate]
            rate = finalist.rate if finalist.is_kept else 0.0
            if rate and evaluation.rate:
                misses.append(abs(math.log(rate / evaluation.rate)))
            self._evaluations[finalist.candidate] = replace(evaluation, rate=rate)
        if misses:
            self._noise = max(EXACT, float(np.median(misses)))
        again = {finalist.candidate for finalist in finalists}
        for candidate, evaluation in self._evaluations.items():
            if candidate not in again:
                deviation = max(evaluation.deviation, self._noise)
                self._evaluations[candidate] = replace(evaluation, deviation=deviation)
        self._refit()

    def _refit(self) -> None:
        times = {}
        for model, points in self._points.items():
            fitted = fit_batch_times(points)
            if fitted is not None:
                times[model] = fitted
        rates = [
            (evaluation.candidate, evaluation.rate) for evaluation in self._evaluations.values()
        ]
        self._capacity = Capacity(times, self._defaults, self._goal.target_us).fitted(rates)
        self._fitted = None

    def _correction(self) -> Correction:
        if self._fitted is None:
            self._fitted = self._fit()
        return self._fitted

    def _fit(self) -> Correction:
        # Candidates that could not be loaded have no rate.
        every = list(self._evaluations.values())
        measured = [evaluation for evaluation in every if not evaluation.failure] or every
        known = self._predicted([evaluation.candidate for evaluation in measured])
        best = max(evaluation.rate for evaluation in measured)
        # A candidate that meets the target at no rate counts with this low rate.
        floor = max(best * _FLOOR, 1e-3)
        logs = np.log([max(evaluation.rate, floor) for evaluation in measured])
        deviations = np.array([evaluation.deviation for evaluation in measured])
        places = self._space.places([evaluation.candidate for evaluation in measured])
        return fit_correction(places, logs - known, deviations)

    def _spread(self, pool: Sequence[Candidate]) -> Search[None]:
        """Evaluate a few candidates that are far apart, from the half with better predictions."""
        for _ in range(min(1 + len(self._space.settings), _SPREAD)):
            self._refit()
            open_ = [candidate for candidate in pool if candidate not in self._evaluations]
            if not open_:
                return
            means = self._rates(open_).mean
            means = means + np.log(self._loadable(open_))
            half = np.flatnonzero(means >= np.median(means))
            places = self._space.places([open_[int(index)] for index in half])
            seen = self._space.places(list(self._evaluations))
            distances = np.abs(places[:, None, :] - seen[None, :, :]).sum(axis=2).min(axis=1)
            # Take the best candidate by the capacity model first.
            if len(self._evaluations) == 1:
                distances = means[half]
            yield from self._evaluate(open_[int(half[int(np.argmax(distances))])])

    def _next(self, pool: Sequence[Candidate]) -> Candidate | None:
        """Return the candidate to evaluate next, or `None` once the search is sure of the best.

        If no expected gain is large enough, the candidate is the one that most likely exceeds the
        best by more than 5 %.
        """
        best = max(self._evaluations.values(), key=lambda evaluation: evaluation.rate)
        beside = self._space.neighbours(best.candidate)
        both = dict.fromkeys((*beside, *pool))
        open_ = [candidate for candidate in both if candidate not in self._evaluations]
        if not open_:
            return None
        rates = self._rates(open_)
        if best.rate == 0:
            return open_[int(np.argmax(rates.mean + np.log(self._loadable(open_))))]
        gains = rates.expected_gains(math.log(best.rate)) * self._loadable(open_)
        index = int(np.argmax(gains))
        if gains[index] >= self._rules.gain:
            return open_[index]
        drawn, draws = self._draws(best.candidate, open_)
        if self._sureness(draws) >= self._rules.sureness:
            return None
        ahead = draws > draws[:, :1] + math.log(1 + _NEAR)
        return drawn[int(np.argmax(ahead.sum(axis=0)))]

    def _draws(
        self, best: Candidate, others: Sequence[Candidate]
    ) -> tuple[list[Candidate], NDArray[np.float64]]:
        """Draw random log rates of the best (first), and of candidates that may exceed it."""
        others = [
            candidate
            for candidate, share in zip(others, self._loadable(others), strict=True)
            if share >= 0.5
        ]
        rates = self._rates(others)
        order = np.argsort(-(rates.mean + 2 * rates.deviation), kind="stable")[:_DRAWN]
        drawn = [best, *(others[int(index)] for index in order)]
        places, logs = self._space.places(drawn), self._predicted(drawn)
        return drawn, self._correction().draws(places, logs, _DRAWS, self._random)

    def _loadable(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Estimate each candidate's probability to load, from earlier loads of similar ones."""
        evaluated = list(self._evaluations.values())
        failed = np.array([bool(evaluation.failure) for evaluation in evaluated])
        if not failed.any() or not candidates:
            return np.ones(len(candidates))
        places = self._space.places(candidates)
        seen = self._space.places([evaluation.candidate for evaluation in evaluated])
        weights = np.exp(-np.abs(places[:, None, :] - seen[None, :, :]).sum(axis=2) / _NEARNESS)
        good, bad = weights[:, ~failed].sum(axis=1), weights[:, failed].sum(axis=1)
        shares: NDArray[np.float64] = (0.5 + good) / (0.5 + good + bad)
        return shares

    def _sureness(self, draws: NDArray[np.float64]) -> float:
        return float((draws.max(axis=1) <= draws[:, 0] + math.log(1 + _NEAR)).mean())

    def _rates(self, candidates: Sequence[Candidate]) -> Rates:
        return self._correction().rates(self._space.places(candidates), self._predicted(candidates))

    def _predicted(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        if not self._capacity.times:
            rates = [
                evaluation.rate for evaluation in self._evaluations.values() if evaluation.rate
            ] or [1.0]
            return np.full(len(candidates), math.log(float(np.median(rates))))
        return np.log([self._capacity.rate(candidate) for candidate in candidates])

    def _ranked(self, without: Candidate) -> list[Evaluation]:
        evaluations = [
            evaluation
            for evaluation in self._evaluations.values()
            if evaluation.rate and not evaluation.is_raced and evaluation.candidate != without
        ]
        return sorted(evaluations, key=lambda evaluation: -evaluation.rate)

    def _result(
        self, finalists: tuple[Finalist, ...], outcome: Outcome, pool: Sequence[Candidate]
    ) -> AdaptiveResult:
        chosen = finalists[outcome.winner].candidate
        others = [candidate for candidate in pool if candidate != chosen]
        _, draws = self._draws(chosen, others)
        samples = [*self._probes]
        for evaluation in self._evaluations.values():
            samples += evaluation.samples
        for finalist in finalists:
            samples += finalist.samples
        return AdaptiveResult(
            evaluations=tuple(self._evaluations.values()),
            finalists=finalists,
            outcome=outcome,
            times=self._capacity.times,
            capacity=self._capacity,
            sureness=self._sureness(draws),
            miss=math.expm1(float(np.median(self._misses))) if self._misses else 0.0,
            effects=tuple(self._effects(chosen)),
            samples=tuple(samples),
        )

    def _effects(self, chosen: Candidate) -> Iterator[Effect]:
        for setting in self._space.settings:
            if len(setting.values) < 2:
                continue
            varied = [
                chosen.replaced(setting.model, setting.name, value) for value in setting.values
            ]
            rates = self._rates(varied)
            rows = zip(setting.values, np.exp(rates.mean), rates.deviation, strict=True)
            yield Effect(
                setting.model,
                setting.name,
                tuple((value, float(rate), float(deviation)) for value, rate, deviation in rows),
            )
