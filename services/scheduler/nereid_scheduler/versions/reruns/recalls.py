"""Which executors may have the first runs of requests that were sent again, and who waits for what
they say about them. Pure.

    event                               decided
    a request is sent again, and some   it waits: what is named is recalled from its executor, the
    of its runs are named, or a grace   others until their executors may have named them
    period is on
    - else                              there is no first run to wait for
    it is sent once more                who waited for it is forgotten: its gateway gave that up
    executors name requests             those among them that wait are recalled
    an executor has no response, or     the next one that has named it is asked; or a report is
    leaves                              awaited, which may name it; else it ends without a response
    another scheduler is lost, or an    in a takeover's grace period each is asked to report what it
    executor joins after that           has begun for the lost one
    no report is awaited any more, or   what is not named ends without a response
    the grace period is over
    all runs of a request have ended    it has the response of its own run, or none

A run is an id under which executors know a request: its own, or of an ensemble's step.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable

    from nereid.core.wire.messages import InferResponse


class Recall(NamedTuple):
    """An executor is to be asked for a run's response."""

    executor: Hashable
    run: int


class ReportQuery(NamedTuple):
    """An executor is to be asked what it has begun for a scheduler that was lost."""

    executor: Hashable
    number: int
    scheduler: str


class FirstRunEnd(NamedTuple):
    """Who waits for a first run gets its response; None: there is none that could be had."""

    waiter: Hashable
    response: InferResponse | None


Decision = Recall | ReportQuery | FirstRunEnd


@dataclass(slots=True, eq=False)
class _Wait:
    waiter: Hashable
    request_id: int
    # The runs that have not ended.
    open: set[int]
    response: InferResponse | None = None


class Recalls:
    """One scheduler's. Executors are sessions; times are seconds of one monotonic clock."""

    def __init__(self, grace_ends_s: float, takeover_grace_s: float, max_named: int) -> None:
        """grace_ends_s: of the start; takeover_grace_s: after the loss of another scheduler.
        max_named: how many runs it remembers.
        """
        self._grace_ends_s = grace_ends_s
        self._takeover_grace_s = takeover_grace_s
        self._max_named = max_named
        # Those that have joined.
        self._executors: dict[Hashable, None] = {}
        # By run, those that have named it, and have not said that they have no response.
        self._named: dict[int, list[Hashable]] = {}
        # The lost schedulers whose takeover has a grace period; None: it is that of the start.
        self._lost: set[str] | None = None
        # The executors that are to report, by the number of the query.
        self._queries: dict[int, Hashable] = {}
        self._numbers = count(1)
        self._waits: dict[Hashable, _Wait] = {}
        # By run, who waits for it; and the executor that is being asked.
        self._by_run: dict[int, _Wait] = {}
        self._asked: dict[int, Hashable] = {}

    @property
    def waiting(self) -> int:
        """How many requests wait for a first run."""
        return len(self._waits)

    @property
    def wake_at_s(self) -> float | None:
        """When to call on_time(); None: nobody waits for that."""
        return self._grace_ends_s if len(self._by_run) > len(self._asked) else None

    def begin_grace(self, ends_s: float) -> None:
        """Executors can join from now on."""
        self._grace_ends_s, self._lost = ends_s, None

    def begin_takeover(self, lost: Iterable[str], now_s: float) -> list[Decision]:
        """Other schedulers were lost. A request that was sent to one of them is not run again
        before the executors have reported what they have begun for it.
        """
        in_grace = now_s < self._grace_ends_s
        if in_grace and self._lost is None:
            return []  # it has just started: others may still join
        lost = set(lost)
        self._lost = lost | self._lost if in_grace and self._lost else lost
        # Executors notice a scheduler that hangs about as soon as its peers do. What waits longer
        # waits in vain; and a request that is not named in time may run again, as after any loss.
        self._grace_ends_s = now_s + self._takeover_grace_s
        queries = [query for each in self._executors for query in self._ask_reports(each, lost)]
        return queries + self._end_grace_early(now_s)

    # ---- requests

    def find(
        self, waiter: Hashable, request_id: int, run_ids: Collection[int], now_s: float
    ) -> list[Decision] | None:
        """A request was sent again; None: there is no first run to wait for.

        run_ids: all of its runs.
        """
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
        """It waits for nothing any more."""
        wait = self._waits.pop(waiter, None)
        for run in () if wait is None else wait.open:
            del self._by_run[run]
            self._asked.pop(run, None)

    def end_waits(self) -> list[Decision]:
        """The scheduler ends: what waits gets no first run."""
        waiters = list(self._waits)
        self._waits.clear()
        self._by_run.clear()
        self._asked.clear()
        return [FirstRunEnd(each, None) for each in waiters]

    def on_time(self, now_s: float) -> list[Decision]:
        """Time has passed."""
        return self._end_unnamed() if now_s >= self._grace_ends_s else []

    # ---- executors

    def executor_joined(
        self, executor: Hashable, runs: Iterable[int], now_s: float
    ) -> list[Decision]:
        """It has begun these, and may have, or get, their responses."""
        self._executors[executor] = None
        decisions = self._name_runs(executor, runs)
        if self._lost and now_s < self._grace_ends_s:
            # It may still have a session with one that was lost.
            decisions += self._ask_reports(executor, self._lost)
        return decisions

    def executor_reported(
        self, executor: Hashable, runs: Iterable[int], query: int, now_s: float
    ) -> list[Decision]:
        """It has begun these. query: that it replies to, 0 if none."""
        decisions = self._name_runs(executor, runs)
        if self._queries.pop(query, None) is not None:
            decisions += self._end_grace_early(now_s)
        return decisions

    def executor_left(self, executor: Hashable, now_s: float) -> list[Decision]:
        """It cannot be asked any more."""
        self._executors.pop(executor, None)
        for run in [each for each, executors in self._named.items() if executor in executors]:
            self._remove_name(executor, run)
        decisions: list[Decision] = []
        for run in [each for each, asked in self._asked.items() if asked is executor]:
            decisions += self._ask_next(run)
        queries = [number for number, asked in self._queries.items() if asked is executor]
        for number in queries:
            del self._queries[number]
        return decisions + self._end_grace_early(now_s) if queries else decisions

    def on_recalled(
        self, executor: Hashable, run: int, response: InferResponse | None
    ) -> list[Decision]:
        """What an executor says about a run. One that has a response can be asked again: the
        gateway's link may break before that arrives.
        """
        if response is not None:
            return self._end_run(run, response)
        self._remove_name(executor, run)
        return self._ask_next(run) if self._asked.get(run) is executor else []

    # ---- inside

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
        queries = [ReportQuery(executor, next(self._numbers), each) for each in sorted(lost)]
        self._queries.update((each.number, executor) for each in queries)
        return [*queries]

    def _remove_name(self, executor: Hashable, run: int) -> None:
        executors = self._named.get(run, [])
        if executor in executors:
            executors.remove(executor)
            if not executors:
                del self._named[run]

    def _recall(self, runs: Iterable[int]) -> list[Decision]:
        """Ask for those of these that wait and are named."""
        decisions: list[Decision] = []
        for run in runs:
            executors = self._named.get(run)
            if executors and run in self._by_run and run not in self._asked:
                self._asked[run] = executors[0]
                decisions.append(Recall(executors[0], run))
        return decisions

    def _ask_next(self, run: int) -> list[Decision]:
        """Who was asked has no response."""
        del self._asked[run]
        # What is not named ends with the last report that is awaited.
        if run in self._named or self._queries:
            return self._recall((run,))
        return self._end_run(run, None)

    def _end_grace_early(self, now_s: float) -> list[Decision]:
        """Once all executors have reported. With none at all, those that come back may have it."""
        if self._queries or not self._executors or now_s >= self._grace_ends_s:
            return []
        self._grace_ends_s = now_s
        return self._end_unnamed()

    def _end_unnamed(self) -> list[Decision]:
        self._queries.clear()
        decisions: list[Decision] = []
        for run in [each for each in self._by_run if each not in self._asked]:
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
