from functools import partial

import pytest

from nereid_analyze.goal import Constraint, Goal
from nereid_analyze.progress import Progress
from nereid_analyze.search.trial import CandidateError, Trial
from nereid_analyze.space.candidate import Candidate
from nereid_perf.measurement import Measurement
from tests.support.measurements import concurrency, measured


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _trial(size: int) -> Trial:
    return Trial(Candidate((("m", "max_batch_size", size),)), concurrency(4), 1.0)


def test_each_candidate_has_its_figures_and_the_end_is_in_view() -> None:
    lines: list[str] = []
    clock = _Clock()

    def measure(trial: Trial) -> Measurement:
        clock.now += 2 * trial.seconds
        size = trial.candidate.choices[0][2]
        assert isinstance(size, int)
        if size == 3:
            raise CandidateError("out of memory")
        return measured(trial.level, [size * 1000] * 10 * size)

    goal = Goal(constraints=(Constraint("perf_latency_p99", most=6),))
    progress = Progress(goal, 4, 6, lines.append, clock)
    measure_counted = partial(progress.measure, measure)
    for size in (2, 2, 8, 4):
        measure_counted(_trial(size))
    with pytest.raises(CandidateError):
        measure_counted(_trial(3))
    for size in (4, 2, 4, 2, 4, 2):
        measure_counted(_trial(size))
    progress.end()
    best = "best so far 40/s, p99 4"
    assert lines[0].startswith("1 of at most 4: max_batch_size=2: 20/s, p99 2")
    # Three candidates of two windows and six more windows, at twice their length.
    assert lines[0].endswith("(max_batch_size=2); about 24 s left")
    assert lines[1].startswith("2 of at most 4: max_batch_size=8: keeps no load")
    assert best in lines[2]
    assert lines[3].startswith("4 of at most 4: max_batch_size=3: out of memory; best so far 40/s")
    (again,) = lines[4:]
    assert again.startswith("Measured again, 4 of about 6; best so far 40/s")
    assert again.endswith("about 4 s left")


def test_what_the_checkpoint_has_takes_no_time() -> None:
    lines: list[str] = []
    clock = _Clock()
    progress = Progress(Goal(), 3, 0, lines.append, clock)

    def measure(trial: Trial) -> Measurement:
        if trial.candidate != _trial(1).candidate:
            clock.now += 3
        return measured(trial.level)

    for size in (1, 2, 4):
        progress.measure(measure, _trial(size))
    assert lines[0].endswith("about 0 s left")
    assert lines[1].endswith("about 3 s left")
