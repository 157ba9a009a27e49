"""Progress of a search: candidates done, seconds left, and the best so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_analyze.search.trial import CandidateError
from nereid_perf.distribution import percentile_us
from nereid_perf.questions.metrics import rate_text, time_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_analyze.goal import Goal
    from nereid_analyze.search.trial import Measure, Trial
    from nereid_analyze.space.candidate import Candidate
    from nereid_perf.measurement import Measurement

_MINUTE: Final = 60
# Seconds between lines while the best candidates are measured again.
_BETWEEN_S: Final = 5.0
# A measurement from the checkpoint takes a smaller share of its window's seconds.
_MEASURED: Final = 0.1


class Progress:
    """Prints a line for each candidate. The search may end before all candidates are measured."""

    def __init__(
        self,
        goal: Goal,
        candidates: int,
        again: int,
        print_line: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """Prepare to count; again: measurements that follow those of the candidates."""
        self._goal = goal
        self._candidates = candidates
        self._again = again
        self._print_line = print_line
        self._clock = clock
        self._seen: set[Candidate] = set()
        self._present: Candidate | None = None
        # The best measurement of the present candidate, and of all.
        self._own: Measurement | None = None
        self._best: tuple[Candidate, Measurement] | None = None
        self._first: Measurement | None = None
        self._failure = ""
        self._repeated = 0
        self._printed = clock()
        # Sums of windows' seconds: of all candidates, and of what was measured in how many seconds.
        self._windows_s = self._measured_windows_s = self._measured_s = 0.0
        self._window_s = 0.0

    def measure(self, measure: Measure, trial: Trial) -> Measurement:
        """Measure a trial and count it; pass on CandidateError."""
        self._begin(trial)
        start = self._clock()
        try:
            measurement = measure(trial)
        except CandidateError as error:
            self._failure = str(error)
            raise
        self._count_time(trial, self._clock() - start)
        self._learn(trial, measurement)
        return measurement

    def end(self) -> None:
        """Print the line of the last candidate."""
        self._end_candidate()

    def _begin(self, trial: Trial) -> None:
        if trial.candidate == self._present:
            return
        self._end_candidate()
        if trial.candidate not in self._seen:
            self._present = trial.candidate
            self._seen.add(trial.candidate)
            return
        self._repeated += 1
        if self._clock() - self._printed >= _BETWEEN_S:
            total = max(self._again, self._repeated)
            self._print(f"Measured again, {self._repeated} of about {total}")

    def _end_candidate(self) -> None:
        if self._present is None:
            return
        text = self._failure or "keeps no load that was measured"
        if self._own is not None:
            text = _figures(self._own)
        number, total = len(self._seen), max(self._candidates, len(self._seen))
        self._print(f"{number} of at most {total}: {self._present.text}: {text}")
        self._present, self._own, self._failure = None, None, ""

    def _print(self, text: str) -> None:
        best = "none"
        if self._best is not None:
            best = f"{_figures(self._best[1])} ({self._best[0].text})"
        self._print_line(f"{text}; best so far {best}; about {_time(self._left_s())} left")
        self._printed = self._clock()

    def _left_s(self) -> float:
        if not self._measured_windows_s:
            return 0.0
        pace = self._measured_s / self._measured_windows_s
        mean_s = self._windows_s / max(len(self._seen), 1)
        # Most repeat trials come after all candidates.
        left = 0 if 2 * self._repeated > self._again else self._candidates - len(self._seen)
        again = max(self._again - self._repeated, 0)
        return pace * (max(left, 0) * mean_s + again * self._window_s)

    def _count_time(self, trial: Trial, took_s: float) -> None:
        self._window_s = max(self._window_s, trial.seconds)
        if trial.candidate == self._present:
            self._windows_s += trial.seconds
        if took_s >= _MEASURED * trial.seconds:
            self._measured_windows_s += trial.seconds
            self._measured_s += took_s

    def _learn(self, trial: Trial, measurement: Measurement) -> None:
        self._first = self._first or measurement
        if not measurement.requests or not self._goal.is_met(measurement):
            return
        if self._own is None or self._rank(measurement) > self._rank(self._own):
            self._own = measurement
        if self._best is None or self._rank(measurement) > self._rank(self._best[1]):
            self._best = trial.candidate, measurement

    def _rank(self, measurement: Measurement) -> float:
        if self._goal.is_throughput or self._first is None:
            return measurement.requests_per_s
        return self._goal.score(measurement, self._first)


def _figures(measurement: Measurement) -> str:
    p99 = time_text(percentile_us(measurement.latencies.response, 99))
    return f"{rate_text(measurement.requests_per_s)}, p99 {p99}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * _MINUTE else f"{seconds / _MINUTE:.0f} min"
