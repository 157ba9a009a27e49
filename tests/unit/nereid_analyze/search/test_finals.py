from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from nereid_analyze.goal import Constraint, Goal
from nereid_analyze.search.finals import Finalist, Outcome, best_of, decide, run_finals
from nereid_analyze.search.inner import Evaluation
from nereid_analyze.search.trial import CandidateError, Sample, Trial, resolve
from nereid_analyze.space.candidate import Candidate
from nereid_perf.measurement import LoadLevel, Measurement
from tests.support.measurements import measured

_GOAL = Goal(constraints=(Constraint("perf_latency_p99", most=20),))


def _evaluation(number: int, rate: float = 100) -> Evaluation:
    candidate = Candidate((("m", "max_batch_size", number),))
    return Evaluation(candidate, rate, LoadLevel("rate", rate), 0.02, False, None, ())


def _at(trial: Trial, ms: float) -> Measurement:
    return measured(trial.level, [ms * 1000] * int(trial.level.value), duration_s=1)


def test_one_that_misses_goes_on_lower() -> None:
    def measure(trial: Trial) -> Measurement:
        return _at(trial, 10 if trial.level.value < 99 else 30)

    (found,) = resolve(run_finals([_evaluation(1)], _GOAL, 1, 3), measure)
    assert found.level.value == 95
    assert found.is_kept
    assert len(found.samples) == 6


def test_one_that_always_misses_is_not_kept() -> None:
    found = resolve(
        run_finals([_evaluation(1), _evaluation(2)], _GOAL, 1, 3),
        lambda trial: _at(trial, 30 if trial.candidate.choices[0][2] == 2 else 10),
    )
    assert [each.is_kept for each in found] == [True, False]
    assert best_of(found, _GOAL) == 0


def test_a_round_that_fails_is_no_round() -> None:
    failures: Iterator[bool] = iter([False, True, *[False] * 10])

    def measure(trial: Trial) -> Measurement:
        if next(failures):
            raise CandidateError("no")
        return _at(trial, 10)

    (found,) = resolve(run_finals([_evaluation(1)], _GOAL, 1, 3), measure)
    assert len(found.samples) >= 5
    assert found.is_kept


def test_of_equals_the_default_wins() -> None:
    def finalist(rate: float) -> Finalist:
        return Finalist(Candidate(), LoadLevel("rate", 1), rate, 3, (rate,) * 3, None, ())

    assert best_of([finalist(10), finalist(10)], Goal()) == 0
    assert best_of([finalist(10), finalist(11)], Goal()) == 1


def test_of_those_that_are_as_good_the_simplest_wins() -> None:
    def finalist(rate: float, *values: int) -> Finalist:
        choices = tuple(("m", f"s{index}", value) for index, value in enumerate(values))
        return Finalist(Candidate(choices), LoadLevel("rate", 1), rate, 3, (rate,) * 3, None, ())

    found = [finalist(50, 1, 1), finalist(100, 2, 2), finalist(99, 1, 2), finalist(90, 2, 1)]
    assert best_of(found, Goal()) == 2


def test_what_is_not_throughput_wins_by_its_score() -> None:
    goal = Goal({"perf_latency_p99": 1})

    def finalist(rate: float, ms: float) -> Finalist:
        shown = measured(LoadLevel("concurrency", 1), [ms * 1000] * 100)
        return Finalist(Candidate(), shown.level, rate, 3, (rate,) * 3, shown, ())

    assert best_of([finalist(10, 5), finalist(20, 9), finalist(9, 2)], goal) == 2


def _decided(
    default: list[float],
    best: list[float],
    kind: str = "concurrency",
    goal: Goal = _GOAL,
    at: Callable[[Trial], Measurement] = lambda trial: _at(trial, 10),
) -> tuple[Outcome, list[Trial]]:
    """Decide between finalists with the rates of their rounds; `at` measures what is asked for."""
    finalists = []
    for number, rates in enumerate((default, best)):
        candidate = Candidate((("m", "max_batch_size", number),))
        level = LoadLevel(kind, max(rates, default=1) or 1)
        samples = tuple(
            Sample(Trial(candidate, level, 1), measured(level, [5000] * int(rate)))
            for rate in rates
        )
        median = sorted(rates)[len(rates) // 2] if rates else 0
        shown = samples[0].measurement if samples else None
        kept = sum(rate > 0 for rate in rates)
        finalists.append(Finalist(candidate, level, median, kept, tuple(rates), shown, samples))
    asked = []

    def measure(trial: Trial) -> Measurement:
        asked.append(trial)
        return at(trial)

    return resolve(decide(finalists, goal, 1), measure), asked


@pytest.mark.parametrize(
    ("best", "winner"),
    [
        ([120, 121, 122, 123, 124], 1),
        ([101, 101, 101, 101, 101], 0),
    ],
)
def test_the_default_wins_unless_every_round_says_otherwise(best: list[float], winner: int) -> None:
    outcome, asked = _decided([100, 101, 100, 101, 100], best)
    assert outcome.winner == winner
    assert not asked


@pytest.mark.parametrize(("again", "winner"), [(100, 0), (120, 1)])
def test_what_one_round_contradicts_is_measured_again(again: int, winner: int) -> None:
    def at(trial: Trial) -> Measurement:
        number = again if trial.candidate.choices[0][2] == 1 else 101
        return measured(trial.level, [5000] * number)

    outcome, asked = _decided([100, 101, 100, 101, 100], [120, 121, 122, 123, 20], at=at)
    assert outcome.winner == winner
    assert len(asked) == 20


def test_few_rounds_get_as_many_more_as_an_interval_needs() -> None:
    outcome, asked = _decided([100, 100], [300, 300])
    assert len(asked) == 6
    assert outcome.winner == 1


def test_a_default_that_fails_each_round_has_no_interval() -> None:
    def at(_trial: Trial) -> Measurement:
        raise CandidateError("no")

    outcome, _ = _decided([100] * 5, [120] * 5, "rate", at=at)
    assert outcome.winner == 0
    assert outcome.advantage is not None
    assert outcome.advantage.low is None


@pytest.mark.parametrize(
    ("default_ms", "winner"),
    [
        # The default keeps the target at the other's rate too, with a p99 as good or worse.
        (10, 0), (15, 0),
        (40, 1),
    ],
)  # fmt: skip
def test_found_rates_are_compared_by_the_latencies_under_one_load(
    default_ms: float, winner: int
) -> None:
    def at(trial: Trial) -> Measurement:
        return _at(trial, default_ms if trial.candidate.choices[0][2] == 0 else 10)

    outcome, asked = _decided([100] * 5, [120] * 5, "rate", at=at)
    assert outcome.winner == winner
    assert len(asked) == 10
    assert {trial.level for trial in asked} == {LoadLevel("rate", 120)}
    assert outcome.metrics == ("perf_latency_p99",)


def test_a_default_that_keeps_no_rate_is_compared_by_its_latencies() -> None:
    def at(trial: Trial) -> Measurement:
        return _at(trial, 200 if trial.candidate.choices[0][2] == 0 else 10)

    default = Finalist(Candidate((("m", "max_batch_size", 0),)), LoadLevel("concurrency", 8), 400,
                       0, (400,) * 5, None, ())  # fmt: skip
    best = Finalist(Candidate((("m", "max_batch_size", 1),)), LoadLevel("rate", 90), 90,
                    5, (90,) * 5, None, ())  # fmt: skip
    asked: list[Trial] = []

    def measure(trial: Trial) -> Measurement:
        asked.append(trial)
        return at(trial)

    outcome = resolve(decide([default, best], _GOAL, 1), measure)
    assert outcome.winner == 1
    assert all(trial.level.value == 90 for trial in asked)
    assert outcome.advantage is not None
    assert outcome.advantage.estimate == pytest.approx(20, rel=0.01)


def test_beside_a_default_that_serves_nothing_what_serves_wins() -> None:
    outcome, asked = _decided([0, 0, 0, 0, 0], [10, 10, 10, 10, 10])
    assert (outcome.winner, outcome.advantage) == (1, None)
    assert not asked


def test_one_that_misses_at_its_concurrency_goes_on_lower() -> None:
    evaluation = _evaluation(1)
    evaluation = replace(evaluation, level=LoadLevel("concurrency", 100))

    def measure(trial: Trial) -> Measurement:
        return _at(trial, 10 if trial.level.value < 90 else 30)

    (found,) = resolve(run_finals([evaluation], _GOAL, 1, 3), measure)
    assert found.is_kept
    assert found.level.value == 80
