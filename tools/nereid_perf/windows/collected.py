"""Collects the workers' reports on one level, and makes the measurement of a span of time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nereid_perf.load.client_cost import client_cost
from nereid_perf.measurement import Latencies, Measurement, PhaseTiming
from nereid_perf.windows.histograms import histogram_of
from nereid_perf.workers.rows import CANCELLED, FAILED, OK, gaps_of, rows_of
from nereid_perf.workers.timing_rows import CLIENT_AND_WIRE, timings_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nereid_perf.measurement import LoadLevel
    from nereid_perf.plan import Workload
    from nereid_perf.workers.messages import Report

_NS: Final = 1e9


class Collected:
    """The rows that workers have reported so far, with queries by time."""

    def __init__(self, workers: int) -> None:
        self.texts: list[str] = []
        self.in_flight = 0
        self._rows: list[NDArray[np.void]] = []
        self._gaps: list[NDArray[np.void]] = []
        self._timings: list[NDArray[np.void]] = []
        self.phases: list[str] = []
        self._phases: list[list[int]] = [[] for _ in range(workers)]
        # Per worker: `_samples` of (time, CPU s used, CPU s waited, delayed requests), and
        # `_outcomes`, the outcome number for each of the worker's error texts.
        self._samples: list[list[tuple[float, ...]]] = [[] for _ in range(workers)]
        self._outcomes: list[list[int]] = [[] for _ in range(workers)]
        self._in_flight = [0] * workers
        self._ended = [False] * workers
        self._final = [False] * workers

    @property
    def watermark_ns(self) -> int:
        """All requests that ended before this time are reported; 0 until each worker reports."""
        return int(min(sample[-1][0] if sample else 0 for sample in self._samples))

    @property
    def ended(self) -> bool:
        """True once all workers have sent all of their requests and all requests have ended."""
        return all(self._ended)

    @property
    def complete(self) -> bool:
        """True once all workers have stopped, so that no more reports follow."""
        return all(self._final)

    def add(self, worker: int, report: Report) -> NDArray[np.void]:
        """Add a report, and return its rows, with outcomes numbered for the whole level."""
        for text in report.new_texts:
            if text not in self.texts:
                self.texts.append(text)
            self._outcomes[worker].append(FAILED + self.texts.index(text))
        rows = rows_of(report.rows)
        if len(rows) and rows["outcome"].max() >= FAILED:
            numbers = np.array([OK, CANCELLED, *self._outcomes[worker]], dtype=np.int64)
            rows = rows.copy()
            rows["outcome"] = numbers[rows["outcome"]]
        self._rows.append(rows)
        self._gaps.append(gaps_of(report.gaps))
        self._add_timings(worker, report)
        self._samples[worker].append(
            (report.until_ns, report.cpu_s, report.waited_s, report.delayed)
        )
        self._ended[worker] = report.ended
        self._final[worker] = report.final
        self._in_flight[worker] = report.in_flight
        self.in_flight = sum(self._in_flight)
        return rows

    def rows(self) -> NDArray[np.void]:
        """Return all rows so far."""
        self._rows = [np.concatenate(self._rows)] if self._rows else []
        return self._rows[0] if self._rows else rows_of(b"")

    def ended_between(self, start_ns: int, end_ns: int) -> NDArray[np.void]:
        """Return the rows of requests that ended in a span."""
        rows = self.rows()
        return rows[(rows["last"] >= start_ns) & (rows["last"] < end_ns)]

    def intended_between(self, start_ns: int, end_ns: int) -> NDArray[np.void]:
        """Return the rows of requests that were scheduled for a time in a span."""
        rows = self.rows()
        return rows[(rows["intended"] >= start_ns) & (rows["intended"] < end_ns)]

    def gaps_between(self, start_ns: int, end_ns: int) -> NDArray[np.void]:
        """Return the gaps between two responses, if the second response came in a span."""
        self._gaps = [np.concatenate(self._gaps)] if self._gaps else []
        gaps = self._gaps[0] if self._gaps else gaps_of(b"")
        return gaps[(gaps["last"] >= start_ns) & (gaps["last"] < end_ns)]

    def timings_between(self, start_ns: int, end_ns: int) -> NDArray[np.void]:
        """Return the timings of requests that ended in a span."""
        self._timings = [np.concatenate(self._timings)] if self._timings else []
        timings = self._timings[0] if self._timings else timings_of(b"")
        return timings[(timings["last"] >= start_ns) & (timings["last"] < end_ns)]

    def _add_timings(self, worker: int, report: Report) -> None:
        for name in report.new_phases:
            if name not in self.phases:
                self.phases.append(name)
            self._phases[worker].append(self.phases.index(name))
        timings = timings_of(report.timings)
        if len(timings):
            timings = timings.copy()
            timings["phase"] = np.array(self._phases[worker], dtype=np.int64)[timings["phase"]]
            self._timings.append(timings)

    def taken_between(self, start_ns: int, end_ns: int) -> list[tuple[float, float, float]]:
        """Return each worker's CPU seconds used, seconds waited for a CPU, and delayed requests."""
        taken = []
        for samples in self._samples:
            table = np.asarray(samples, dtype=np.float64).reshape(-1, 4)
            if not len(table):
                continue
            cpu, waited, delayed = (
                float(np.diff(np.interp((start_ns, end_ns), table[:, 0], table[:, column]))[0])
                for column in (1, 2, 3)
            )
            taken.append((cpu, waited, delayed))
        return taken


def latencies_ns(rows: NDArray[np.void], *, since: str = "intended") -> NDArray[np.int64]:
    """Return the latencies of the requests that succeeded, in nanoseconds."""
    good = rows[rows["outcome"] == OK]
    return np.asarray(good["last"] - good[since])


def measurement_of(
    collected: Collected,
    level: LoadLevel,
    span_ns: tuple[int, int],
    workloads: Sequence[Workload],
    **more: Any,
) -> Measurement:
    """Return the measurement of a span of time; `more` has the fields that rows do not give.

    The rate counts requests that ended in the span. In an open loop, latencies and failures are of
    requests scheduled in it, so that those held back by a stall count.
    """
    start_ns, end_ns = span_ns
    ended = collected.ended_between(start_ns, end_ns)
    if level.kind == "concurrency":
        rows = collected.rows()
        # Requests that failed later count too, for example because no response came.
        lost = (rows["last"] >= end_ns) & (rows["intended"] < end_ns) & (rows["outcome"] >= FAILED)
        timed = np.concatenate((ended, rows[lost]))
    else:
        timed = collected.intended_between(start_ns, end_ns)
    gaps = collected.gaps_between(start_ns, end_ns)
    timings = collected.timings_between(start_ns, end_ns)
    taken = collected.taken_between(start_ns, end_ns)
    duration_s = (end_ns - start_ns) / _NS
    more["level"] = level
    more["duration_s"] = duration_s
    more["client"] = client_cost(
        [(cpu_s, waited_s) for cpu_s, waited_s, _ in taken],
        wall_s=duration_s,
        requests=len(ended),
        delayed=round(sum(delayed for *_, delayed in taken)),
    )
    models = {}
    if len(workloads) > 1:
        same = {**more, "server": (), "gauges": {}}
        for number, workload in enumerate(workloads):
            mine = [table[table["workload"] == number] for table in (ended, timed, gaps, timings)]
            models[workload.model] = _measurement(mine, collected, **same)
    return _measurement([ended, timed, gaps, timings], collected, models=models, **more)


def _measurement(
    tables: Sequence[NDArray[np.void]], collected: Collected, **more: Any
) -> Measurement:
    """Make a measurement from tables: requests for rate and for latencies, gaps, timings."""
    ended, timed, gaps, timings = tables
    texts = collected.texts
    good = ended[ended["outcome"] == OK]
    failed = Counter(timed["outcome"][timed["outcome"] >= FAILED].tolist())
    return Measurement(
        requests=len(good),
        responses=int(good["responses"].sum()),
        input_tokens=int(good["input_tokens"].sum()),
        output_tokens=int(good["output_tokens"].sum()),
        failures={texts[outcome - FAILED]: failed[outcome] for outcome in sorted(failed)},
        cancelled=int((timed["outcome"] == CANCELLED).sum()),
        latencies=Latencies(
            response=histogram_of(latencies_ns(timed)),
            service=histogram_of(latencies_ns(timed, since="sent")),
            first=histogram_of(_first_ns(timed)),
            between=histogram_of(np.asarray(gaps["gap"])),
        ),
        timings=_phase_timings(timings, collected.phases),
        **more,
    )


def _phase_timings(timings: NDArray[np.void], names: Sequence[str]) -> dict[str, PhaseTiming]:
    found: dict[str, PhaseTiming] = {}
    if not len(timings):
        return found
    # This phase is the rest of the time, so it comes last. Every request with timings has it.
    rest = names.index(CLIENT_AND_WIRE)
    requests = int((timings["phase"] == rest).sum())
    numbers = [*(number for number in range(len(names)) if number != rest), rest]
    for number in numbers:
        name = names[number]
        ns = timings["ns"][timings["phase"] == number]
        if len(ns):
            found[name] = PhaseTiming(
                len(ns), float(ns.sum()) / requests / 1000, float(np.percentile(ns, 99)) / 1000
            )
    return found


def _first_ns(rows: NDArray[np.void]) -> NDArray[np.int64]:
    good = rows[(rows["outcome"] == OK) & (rows["first"] > 0)]
    return np.asarray(good["first"] - good["intended"])
