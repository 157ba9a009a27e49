"""Decisions on the first runs of requests that were sent again.

A *run* is the id under which executors know a request or an ensemble's step. A run is *named* if an
executor has reported that it has begun the run.

    event                               decision
    a request is sent again, and some   it waits: named runs are recalled from their executors, the
    of its runs are named, or a grace   others wait until their executors may have named them
    period is on
    - otherwise                         there is no first run to wait for
    it is sent once more                the earlier wait is forgotten, as its gateway gave it up
    executors name runs                 the runs among them that are waited for are recalled
    an executor has no response, or     the next executor that has named the run is asked; or a
    leaves                              report is awaited, which may name it; else it ends without
                                        a response
    another scheduler is lost, or an    in a takeover's grace period each executor is asked to
    executor joins after that           report what it has begun for the lost scheduler
    no report is awaited any more, or   runs that are not named end without a response
    the grace period is over
    all runs of a request have ended    the request gets the response of its own run, or none

The module does no I/O; `first_runs` carries the decisions out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable

    from nereid.core.wire.messages import InferResponse


class Recall(NamedTuple):
    """Decision to ask an executor for a run's response."""

    executor: Hashable
    run: int


class ReportQuery(NamedTuple):
    """Decision to ask an executor which runs it has begun for a scheduler that was lost."""

    executor: Hashable
    number: int
    scheduler: str


class FirstRunEnd(NamedTuple):
    """Decision to end a wait; `response` is `None` if the first run gave none."""

    waiter: Hashable
    response: InferResponse | None


Decision = Recall | ReportQuery | FirstRunEnd


@dataclass(slots=True, eq=False)
class _Wait:
    waiter: Hashable
    request_id: int
    open: set[int]
    response: InferResponse | None = None


class Recalls:
    """Decisions about first runs. Sessions identify executors. Times are monotonic seconds."""

    def __init__(self, grace_ends_s: float, takeover_grace_s: float, max_named: int) -> None:
        """takeover_grace_s: length of the grace period after another scheduler's loss."""
        self._grace_ends_s = grace_ends_s
        self._takeover_grace_s = takeover_grace_s
        self._max_named = max_named
        self._executors: dict[Hashable, None] = {}
        # Executors that have named a run and may have its response.
        self._named: dict[int, list[Hashable]] = {}
        # Schedulers whose loss has begun the grace period; `None` after the start.
        self._lost: set[str] | None = None
        # Executors whose reports are awaited, by the query's number.
        self._queries: dict[int, Hashable] = {}
        self._numbers = count(1)
        self._waits: dict[Hashable, _Wait] = {}
        # The request that waits for a run, and the executor that is being asked for its response.
        self._by_run: dict[int, _Wait] = {}
        self._asked: dict[int, Hashable] = {}

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a first run."""
        return len(self._waits)

    @property
    def wake_at_s(self) -> float | None:
        """Time to call on_time(); `None` if no run waits for the end of the grace period."""
        return self._grace_ends_s if len(self._by_run) > len(self._asked) else None

    def begin_grace(self, ends_s: float) -> None:
        """Restart the grace period of the start, since executors can join only from now on."""
        self._grace_ends_s, self._lost = ends_s, None

    def begin_takeover(self, lost: Iterable[str], now_s: float) -> list[Decision]:
        """Begin a grace period in which executors report their runs for lost schedulers.

        Requests to a lost scheduler do not run again before these reports.
        """
        in_grace = now_s < self._grace_ends_s
        if in_grace and self._lost is None:
            return []  # this scheduler has just started: executors may still join
        lost = set(lost)
        self._lost = lost | self._lost if in_grace and self._lost else lost
        # Executors notice a hanging scheduler about as soon as its peers do, so longer is in vain.
        self._grace_ends_s = now_s + self._takeover_grace_s
        queries = [
            query for executor in self._executors for query in self._ask_reports(executor, lost)
        ]
        return queries + self._end_grace_early(now_s)

    def find(
        self, waiter: Hashable, request_id: int, run_ids: Collection[int], now_s: float
    ) -> list[Decision] | None:
        """Let a resent request wait for its first run; return `None` if there is none."""
        for run in run_ids:
            older = self._by_run.get(run)
            if older is not None:
                self.forget(older.waiter)
        in_grace = now_s < self._grace_ends_s
        runs = {run for run in run_ids if in_grace or run in self._named}
        if not runs:
            return None
        wait = self._waits[waiter] = _Wait(waiter, request_id, runs)
        self._by_run.update(dict.fromkeys(runs, wait))
        return self._recall(runs)

    def forget(self, waiter: Hashable) -> None:
        """Forget a request that no longer waits."""
        wait = self._waits.pop(waiter, None)
        for run in () if wait is None else wait.open:
            del self._by_run[run]
            self._asked.pop(run, None)

    def end_waits(self) -> list[Decision]:
        """End all waits without a response, since the scheduler ends."""
        waiters = list(self._waits)
        self._waits.clear()
        self._by_run.clear()
        self._asked.clear()
        return [FirstRunEnd(waiter, None) for waiter in waiters]

    def on_time(self, now_s: float) -> list[Decision]:
        """End the waits of runs that nobody has named, if the grace period is over."""
        return self._end_unnamed() if now_s >= self._grace_ends_s else []

    def executor_joined(
        self, executor: Hashable, runs: Iterable[int], now_s: float
    ) -> list[Decision]:
        """Add an executor that has begun these runs, and has their responses or will get them."""
        self._executors[executor] = None
        decisions = self._name_runs(executor, runs)
        if self._lost and now_s < self._grace_ends_s:
            # The executor may still have a session with a scheduler that was lost.
            decisions += self._ask_reports(executor, self._lost)
        return decisions

    def executor_reported(
        self, executor: Hashable, runs: Iterable[int], query: int, now_s: float
    ) -> list[Decision]:
        """Record runs that an executor has begun. query: number of the query, 0 if not asked."""
        decisions = self._name_runs(executor, runs)
        if self._queries.pop(query, None) is not None:
            decisions += self._end_grace_early(now_s)
        return decisions

    def executor_left(self, executor: Hashable, now_s: float) -> list[Decision]:
        """Remove an executor that has left."""
        self._executors.pop(executor, None)
        for run in [run for run, executors in self._named.items() if executor in executors]:
            self._remove_name(executor, run)
        decisions: list[Decision] = []
        for run in [run for run, asked in self._asked.items() if asked is executor]:
            decisions += self._ask_next(run)
        queries = [number for number, asked in self._queries.items() if asked is executor]
        for number in queries:
            del self._queries[number]
        return decisions + self._end_grace_early(now_s) if queries else decisions

    def on_recalled(
        self, executor: Hashable, run: int, response: InferResponse | None
    ) -> list[Decision]:
        """Record an answer about a run. An executor with a response can be asked again."""
        if response is not None:
            return self._end_run(run, response)
        self._remove_name(executor, run)
        return self._ask_next(run) if self._asked.get(run) is executor else []

    def _name_runs(self, executor: Hashable, runs: Iterable[int]) -> list[Decision]:
        named = [*runs]
        for run in named:
            executors = self._named.setdefault(run, [])
            if executor not in executors:
                executors.append(executor)
        while len(self._named) > self._max_named:
            del self._named[next(iter(self._named))]
        return self._recall(named)

    def _ask_reports(self, executor: Hashable, lost: Iterable[str]) -> list[Decision]:
        queries = [
            ReportQuery(executor, next(self._numbers), scheduler) for scheduler in sorted(lost)
        ]
        self._queries.update((query.number, executor) for query in queries)
        return [*queries]

    def _remove_name(self, executor: Hashable, run: int) -> None:
        executors = self._named.get(run, [])
        if executor in executors:
            executors.remove(executor)
            if not executors:
                del self._named[run]

    def _recall(self, runs: Iterable[int]) -> list[Decision]:
        decisions: list[Decision] = []
        for run in runs:
            executors = self._named.get(run)
            if executors and run in self._by_run and run not in self._asked:
                self._asked[run] = executors[0]
                decisions.append(Recall(executors[0], run))
        return decisions

    def _ask_next(self, run: int) -> list[Decision]:
        """Ask the next executor that has named a run: the one asked before has no response."""
        del self._asked[run]
        # An unnamed run ends when the last awaited report has come.
        if run in self._named or self._queries:
            return self._recall((run,))
        return self._end_run(run, None)

    def _end_grace_early(self, now_s: float) -> list[Decision]:
        """End the grace period once all executors have reported. Without executors, it goes on."""
        if self._queries or not self._executors or now_s >= self._grace_ends_s:
            return []
        self._grace_ends_s = now_s
        return self._end_unnamed()

    def _end_unnamed(self) -> list[Decision]:
        self._queries.clear()
        decisions: list[Decision] = []
        for run in [run for run in self._by_run if run not in self._asked]:
            decisions += self._end_run(run, None)
        return decisions

    def _end_run(self, run: int, response: InferResponse | None) -> list[Decision]:
        wait = self._by_run.pop(run, None)
        self._asked.pop(run, None)
        if wait is None:
            return []
        wait.open.discard(run)
        if run == wait.request_id:
            wait.response = response
        if wait.open:
            return []
        del self._waits[wait.waiter]
        return [FirstRunEnd(wait.waiter, wait.response)]
