from collections.abc import Iterator

from nereid_analyze.goal import Constraint, Goal
from nereid_analyze.search.finals import Finalist, run_finals, winner_of
from nereid_analyze.search.inner import Evaluation
from nereid_analyze.search.trial import CandidateError, Trial, resolve
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
    assert winner_of(found, _GOAL) == 0


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

    assert winner_of([finalist(10), finalist(10)], Goal()) == 0
    assert winner_of([finalist(10), finalist(11)], Goal()) == 1


def test_of_those_that_are_as_good_the_simplest_wins() -> None:
    def finalist(rate: float, *values: int) -> Finalist:
        choices = tuple(("m", f"s{index}", value) for index, value in enumerate(values))
        return Finalist(Candidate(choices), LoadLevel("rate", 1), rate, 3, (rate,) * 3, None, ())

    found = [finalist(50, 1, 1), finalist(100, 2, 2), finalist(99, 1, 2), finalist(90, 2, 1)]
    assert winner_of(found, Goal()) == 2


def test_what_is_not_throughput_wins_by_its_score() -> None:
    goal = Goal({"perf_latency_p99": 1})

    def finalist(rate: float, ms: float) -> Finalist:
        shown = measured(LoadLevel("concurrency", 1), [ms * 1000] * 100)
        return Finalist(Candidate(), shown.level, rate, 3, (rate,) * 3, shown, ())

    assert winner_of([finalist(10, 5), finalist(20, 9), finalist(9, 2)], goal) == 2
