"""Measures a server at levels of load. Calls block: do not call it in a running event loop."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, Literal, Self

import numpy as np

from nereid_perf.load.concurrency import share_of
from nereid_perf.records import RecordFile
from nereid_perf.server import ServerError
from nereid_perf.server_stats.gauges import GaugeSampler
from nereid_perf.server_stats.statistics import (
    composing_models,
    server_splits,
    statistics_by_version,
)
from nereid_perf.windows.collected import Collected, latencies_ns, measurement_of
from nereid_perf.windows.stability import WINDOWS, LastThree, StabilityRule, Window
from nereid_perf.windows.warm_up import warm_up_length
from nereid_perf.workers.messages import Connect, Connected, Report, Start, Stop
from nereid_perf.workers.pool import WorkerError, WorkerPool
from nereid_perf.workers.rows import FAILED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from nereid_perf.measurement import LoadLevel, Measurement
    from nereid_perf.plan import Plan
    from nereid_perf.server import Server
    from nereid_perf.server_stats.statistics import Statistics

_NS: Final = 1_000_000_000
# Time from the start message to the load, so that all workers begin together.
_START_NS: Final = 50_000_000
_CONNECT_S: Final = 60.0
_PROGRESS_NS: Final = _NS // 2
# If no worker reports for this long, the workers are stopped or get no CPU.
_SILENCE_S: Final = 30.0
_WARM_UP_BIN_NS: Final = _NS // 20
_MAX_WARM_UP_S: Final = 10.0
# Bound of a window that counts requests, as a multiple of interval_s: the server may be stuck.
_MAX_COUNT_WINDOW: Final = 10
# If no request ends in this many windows, the server counts as not responding.
_SILENT_WINDOWS: Final = 3
# Number of last windows that are used if the figures never become stable.
_UNSTABLE_WINDOWS: Final = 3


class SessionError(Exception):
    """Raised if a measurement cannot go on, for example without a connection; the text says why."""


@dataclass(frozen=True, kw_only=True)
class WindowSettings:
    """The length of a measurement.

    mode: "time" (a window lasts interval_s) or "count" (until request_count requests have ended,
    but at most ten times interval_s). percentile: latency that must be stable; `None` means the
    mean. warm_up: "auto", or a number of requests. total_requests: if not 0, measure one window of
    this many. drain_s: seconds to wait at the end; with total_requests, maximum seconds without an
    ended request.
    """

    mode: Literal["time", "count"] = "time"
    interval_s: float = 5.0
    request_count: int = 50
    rule: StabilityRule = field(default_factory=LastThree)
    max_trials: int = 10
    percentile: float | None = None
    warm_up: int | Literal["auto"] = "auto"
    total_requests: int = 0
    drain_s: float = 10.0

    @property
    def seconds(self) -> tuple[float, float]:
        """The least and the most seconds of a level of windows that last a time."""
        shortest_s, longest_s = self.warm_up_s
        windows = min(WINDOWS, self.max_trials)
        return (
            shortest_s + windows * self.interval_s,
            longest_s + self.max_trials * self.interval_s,
        )

    @property
    def warm_up_s(self) -> tuple[float, float]:
        """The least and the most seconds of an automatic warm-up."""
        shortest_s = min(1.0, self.interval_s)
        return shortest_s, max(shortest_s, min(_MAX_WARM_UP_S, 2 * self.interval_s))


@dataclass(frozen=True, slots=True)
class Progress:
    """Figures of about the last second of a level; latencies are in ns, 0 without responses."""

    level: LoadLevel
    elapsed_s: float
    windows: int
    is_warm: bool
    requests_per_s: float
    p50_ns: int
    p99_ns: int
    failures: int
    in_flight: int


class Session:
    """The worker processes of a run, which measure one level at a time.

    Between calls there is no load; workers and connections stay. Several sessions may be open at
    once.
    """

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        plan: Plan,
        windows: WindowSettings,
        *,
        server: Server | None = None,
        bls_models: tuple[str, ...] = (),
        metrics_url: str = "",
        metrics_interval_s: float = 1.0,
        records: Path | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Prepare a session; entering it starts the workers.

        server: for statistics. bls_models: called models, in addition to an ensemble's.
        metrics_url: "" means no gauges. records: CSV file with a row per request. on_progress:
        called about twice a second, in measure()'s thread.
        """
        self._plan = plan
        self._windows = windows
        self._server = server
        self._bls_models = bls_models
        self._metrics_url = metrics_url
        self._metrics_interval_s = metrics_interval_s
        self._records_path = records
        self._on_progress = on_progress
        self._exits = ExitStack()
        self._records: RecordFile | None = None
        self._pool: WorkerPool
        self._models: tuple[str, ...] = ()
        # The measurement of a level that Ctrl-C has ended; `None` if none was or it was warming up.
        self.interrupted: Measurement | None = None

    def __enter__(self) -> Self:
        """Start the workers; raise OSError, or ServerError if statistics cannot be read."""
        with ExitStack() as exits:
            if self._server is not None:
                self._models = self._measured_models(self._server)
            if self._records_path is not None:
                self._records = exits.enter_context(RecordFile(self._records_path))
            self._pool = WorkerPool(self._plan)
            exits.callback(self._pool.close)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._exits.close()

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._pool.pids

    def measure(self, level: LoadLevel) -> Measurement:
        """Measure windows until they are stable, or the maximum number is reached.

        Raises SessionError: in a closed loop, also if all requests fail or none ends. In an open
        loop, the measurement contains the failures.
        """
        settings = self._windows
        if settings.total_requests or (level.kind == "trace" and not self._plan.shape.intervals_ns):
            return self._measured(level, self._measure_all)
        return self._measured(level, self._measure_windows)

    def measure_for(self, level: LoadLevel, seconds: float, warm_up_s: float = 0.0) -> Measurement:
        """Measure one window after a warm-up; is_stable is `True`. May raise SessionError."""

        def measure(run: _Run) -> _Span:
            run.receive_until(lambda: run.elapsed_s >= warm_up_s)
            before = self._statistics()
            start_ns = run.begin_measurement(before)
            end_ns = start_ns + round(seconds * _NS)
            run.receive_until(lambda: run.collected.watermark_ns >= end_ns)
            return _Span(start_ns, end_ns, before, self._statistics(), windows=1, is_stable=True)

        return self._measured(level, measure)

    def _measured(self, level: LoadLevel, measure: Callable[[_Run], _Span]) -> Measurement:
        run = _Run(self._plan, self._pool, level, self._records, self._on_progress)
        most_requests = self._windows.total_requests
        if most_requests and measure == self._measure_all:
            most_requests += self._first_requests()
        else:
            most_requests = 0
        gauges: GaugeSampler | None = None
        try:
            run.begin(most_requests or None)
            with self._sampled() as gauges:
                span = measure(run)
            run.end(self._windows.drain_s)
        except WorkerError as error:
            raise SessionError(str(error)) from error
        except KeyboardInterrupt:
            # In the warm-up nothing is measured yet; the workers end with the session.
            if run.is_warm:
                with suppress(WorkerError):
                    run.end(0.0)
                self.interrupted = self._measurement(run, self._interrupted_span(run), gauges)
            raise
        except Exception:
            # The next level must begin without this level's load.
            with suppress(WorkerError):
                run.end(0.0)
            raise
        measurement = self._measurement(run, span, gauges)
        if level.kind == "concurrency":
            _refuse_failure(measurement.requests, measurement.failures)
        return measurement

    def _measurement(self, run: _Run, span: _Span, gauges: GaugeSampler | None) -> Measurement:
        return measurement_of(
            run.collected,
            run.level,
            (span.start_ns, span.end_ns),
            self._plan.workloads,
            is_stable=span.is_stable,
            windows=span.windows,
            server=server_splits(span.before, span.after),
            gauges={} if gauges is None else gauges.summary(),
        )

    def _interrupted_span(self, run: _Run) -> _Span:
        end_ns = max(run.stopped_ns, run.warm_ns + 1)
        try:
            after = self._statistics() if run.before else {}
        except ServerError:
            after = {}
        before = run.before if after else {}
        return _Span(run.warm_ns, end_ns, before, after, windows=run.windows + 1, is_stable=False)

    def _sampled(self) -> AbstractContextManager[GaugeSampler | None]:
        if not self._metrics_url:
            return nullcontext()
        return GaugeSampler(self._metrics_url, self._metrics_interval_s)

    def _measure_all(self, run: _Run) -> _Span:
        """Measure a given number of requests, or a whole trace, as one window."""
        first = self._first_requests()
        before = self._statistics()
        if first:
            run.receive_while_some_end(lambda: run.ended_requests >= first, self._windows.drain_s)
            before = self._statistics()
        run.begin_measurement(before)
        run.receive_while_some_end(lambda: run.collected.ended, self._windows.drain_s)
        is_all = run.collected.ended
        rows = run.collected.rows()
        ends = np.sort(rows["last"])
        if 0 < first <= len(ends):
            start_ns = int(ends[first - 1]) + 1
        else:
            # A request may be early, because an event loop's timer may fire almost 1 ms early.
            start_ns = min([run.start_ns, *rows["sent"].tolist()])
        end_ns = int(ends[-1]) + 1 if is_all else monotonic_ns()
        return _Span(start_ns, end_ns, before, self._statistics(), windows=1, is_stable=is_all)

    def _measure_windows(self, run: _Run) -> _Span:
        settings = self._windows
        self._warm_up(run)
        windows: list[Window] = []
        spans: list[tuple[int, int]] = []
        statistics = [self._statistics()]
        start_ns = run.begin_measurement(statistics[0])
        stable = 0
        while not stable and len(windows) < settings.max_trials:
            end_ns = self._window_end(run, start_ns)
            rows = run.collected.ended_between(start_ns, end_ns)
            windows.append(_window(rows, end_ns - start_ns, settings.percentile))
            spans.append((start_ns, end_ns))
            statistics.append(self._statistics())
            run.windows = len(windows)
            if not windows[-1].rate and (failed := rows[rows["outcome"] >= FAILED]).size:
                if run.level.kind != "concurrency":
                    # The load is too high for the server, so further windows would not be better.
                    break
                text = run.collected.texts[int(failed[-1]["outcome"]) - FAILED]
                _refuse_failure(0, {text: len(failed)})
            stable = settings.rule.stable_windows(windows)
            start_ns = end_ns
        used = stable or min(len(windows), _UNSTABLE_WINDOWS)
        return _Span(
            spans[-used][0],
            spans[-1][1],
            statistics[-used - 1],
            statistics[-1],
            windows=len(windows),
            is_stable=stable > 0,
        )

    def _window_end(self, run: _Run, start_ns: int) -> int:
        settings = self._windows
        if settings.mode == "time":
            end_ns = start_ns + round(settings.interval_s * _NS)
            self._receive_until(run, lambda: run.collected.watermark_ns >= end_ns)
            return end_ns

        longest_ns = round(_MAX_COUNT_WINDOW * settings.interval_s * _NS)

        def enough() -> bool:
            until_ns = run.collected.watermark_ns
            return until_ns - start_ns >= longest_ns or (
                run.ended_requests - ended_before >= settings.request_count
                and len(run.collected.ended_between(start_ns, until_ns)) >= settings.request_count
            )

        ended_before = run.ended_requests
        self._receive_until(run, enough)
        return run.collected.watermark_ns

    def _receive_until(self, run: _Run, condition: Callable[[], bool]) -> None:
        """Receive until a condition holds; in a closed loop, raise if the server is silent."""
        settings = self._windows
        most_s = max(settings.drain_s, _SILENT_WINDOWS * settings.interval_s)
        while not condition():
            run.receive_report()
            if run.level.kind == "concurrency" and run.silent_s > most_s:
                raise SessionError(
                    f"no request has ended for {run.silent_s:.1f} s, though"
                    f" {run.collected.in_flight} are in flight: the server does not respond;"
                    " --drain-timeout-secs waits longer"
                )

    def _warm_up(self, run: _Run) -> None:
        settings = self._windows
        if settings.warm_up != "auto":
            least = settings.warm_up
            run.receive_while_some_end(lambda: run.ended_requests >= least, settings.drain_s)
            return
        shortest_s, longest_s = settings.warm_up_s
        run.receive_until(lambda: run.elapsed_s >= shortest_s)
        while run.elapsed_s < longest_s and not run.is_steady():
            run.receive_report()

    def _first_requests(self) -> int:
        return self._windows.warm_up if self._windows.warm_up != "auto" else 0

    def _measured_models(self, server: Server) -> tuple[str, ...]:
        names: dict[str, None] = {}
        for workload in self._plan.workloads:
            names[workload.model] = None
            names.update(dict.fromkeys(composing_models(workload.model, server.config)))
        names.update(dict.fromkeys(self._bls_models))
        return tuple(names)

    def _statistics(self) -> Statistics:
        if self._server is None:
            return {}
        entries = []
        for model in self._models:
            found = self._server.statistics(model)
            if found is None:
                return {}
            entries += found
        return statistics_by_version(entries)


@dataclass(frozen=True, slots=True)
class _Span:
    start_ns: int
    end_ns: int
    before: Statistics
    after: Statistics
    windows: int
    is_stable: bool


class _Run:
    def __init__(
        self,
        plan: Plan,
        pool: WorkerPool,
        level: LoadLevel,
        records: RecordFile | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.collected = Collected(plan.workers)
        self.start_ns = 0
        self.ended_requests = 0
        self._last_end_ns = 0
        self.windows = 0
        self.is_warm = False
        # Time and statistics at the beginning of what is measured, and the time of end().
        self.warm_ns = 0
        self.before: Statistics = {}
        self.stopped_ns = 0
        self._plan = plan
        self._pool = pool
        self.level = level
        self._records = records
        self._on_progress = on_progress
        self._progress_ns = 0
        self._connected = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds from the beginning to the time up to which all workers have reported."""
        return max(0.0, (self.collected.watermark_ns - self.start_ns) / _NS)

    @property
    def silent_s(self) -> float:
        """Seconds without an ended request, until the time up to which all workers reported."""
        since_ns = max(self.start_ns, self._last_end_ns)
        return max(0.0, (self.collected.watermark_ns - since_ns) / _NS)

    def begin(self, most_requests: int | None) -> None:
        pool, workers = self._pool, self._plan.workers
        pool.send(Connect(self.level))
        self.receive_until(lambda: self._connected == workers, _CONNECT_S)
        self.start_ns = self._progress_ns = monotonic_ns() + _START_NS
        # In a closed loop with fewer requests than workers, the other workers send nothing.
        senders = (
            min(workers, int(self.level.value)) if self.level.kind == "concurrency" else workers
        )
        shares = [
            None
            if most_requests is None
            else (share_of(most_requests, worker, senders) if worker < senders else 0)
            for worker in range(workers)
        ]
        pool.send(*(Start(self.level, self.start_ns, share) for share in shares))

    def begin_measurement(self, before: Statistics) -> int:
        """Note that the warm-up has ended, and return the time."""
        self.before, self.is_warm = before, True
        self.warm_ns = max(monotonic_ns(), self.start_ns)
        return self.warm_ns

    def end(self, drain_s: float) -> None:
        self.stopped_ns = monotonic_ns()
        self._pool.send(Stop(drain_s))
        self.receive_until(lambda: self.collected.complete, drain_s + _SILENCE_S)

    def receive_until(self, condition: Callable[[], bool], silence_s: float = _SILENCE_S) -> None:
        """Receive reports until a condition holds; raise WorkerError if none come."""
        while not condition():
            self.receive_report(silence_s)

    def receive_while_some_end(self, condition: Callable[[], bool], most_s: float) -> None:
        """Receive reports until a condition holds, or no request in flight has ended for most_s."""
        ended, since_ns = self.ended_requests, monotonic_ns()
        while not condition():
            self.receive_report()
            now_ns = monotonic_ns()
            if self.ended_requests != ended or not self.collected.in_flight:
                ended, since_ns = self.ended_requests, now_ns
            elif now_ns - since_ns > most_s * _NS:
                return

    def receive_report(self, silence_s: float = _SILENCE_S) -> None:
        """Receive the next report; raise WorkerError as receive_until() does."""
        messages = self._pool.receive(silence_s)
        if not messages:
            raise WorkerError(f"no worker has reported for {silence_s:g} s")
        for worker, message in messages:
            if isinstance(message, Connected):
                self._connected += 1
            elif isinstance(message, Report):
                rows = self.collected.add(worker, message)
                self.ended_requests += len(rows)
                if len(rows):
                    self._last_end_ns = message.until_ns
                if self._records is not None:
                    self._records.write(rows, self.level, self.start_ns, self.collected.texts)
        now_ns = monotonic_ns()
        if self._on_progress is not None and now_ns - self._progress_ns >= _PROGRESS_NS:
            self._on_progress(self._progress(now_ns))
            self._progress_ns = now_ns

    def is_steady(self) -> bool:
        """Return whether the warm-up of the latencies has ended."""
        rows = self.collected.ended_between(self.start_ns, self.collected.watermark_ns)
        bins = (rows["last"] - self.start_ns) // _WARM_UP_BIN_NS
        latencies = rows["last"] - rows["intended"]
        counts = np.bincount(bins)
        sums = np.bincount(bins, weights=latencies)
        return warm_up_length((sums[counts > 0] / counts[counts > 0]).tolist()) is not None

    def _progress(self, now_ns: int) -> Progress:
        end_ns = self.collected.watermark_ns
        start_ns = end_ns - (now_ns - self._progress_ns)
        rows = self.collected.ended_between(start_ns, end_ns)
        latencies = latencies_ns(rows)
        p50, p99 = np.percentile(latencies, (50, 99)) if len(latencies) else (0, 0)
        return Progress(
            level=self.level,
            elapsed_s=self.elapsed_s,
            windows=self.windows,
            is_warm=self.is_warm,
            requests_per_s=len(latencies) * _NS / max(1, end_ns - start_ns),
            p50_ns=int(p50),
            p99_ns=int(p99),
            failures=int((rows["outcome"] >= FAILED).sum()),
            in_flight=self.collected.in_flight,
        )


def _window(rows: NDArray[np.void], duration_ns: int, percentile: float | None) -> Window:
    latencies = latencies_ns(rows)
    if not len(latencies):
        return Window(0.0, 0.0)
    latency = latencies.mean() if percentile is None else np.percentile(latencies, percentile)
    return Window(len(latencies) * _NS / duration_ns, float(latency))


def failure_text(failures: Mapping[str, int]) -> str:
    """Return the error text for a measurement in which all requests failed."""
    text = max(failures, key=lambda failure: failures[failure])
    return f"all requests failed, most of them with: {text}"


def _refuse_failure(requests: int, failures: Mapping[str, int]) -> None:
    if not requests and failures:
        raise SessionError(failure_text(failures))
