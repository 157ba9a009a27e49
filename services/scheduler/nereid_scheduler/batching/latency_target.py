"""Batching that holds a target (a model's parameter target_p99_us): the largest batch, how long it
waits for more while an instance is free, and which requests are refused, as they would be late.

How long a batch takes is learnt by its size (service_times). A request that comes just after an
instance has begun waits for the next one to end, and executes then: so the largest batch is the one
of the highest rate whose time fits in the target once and, shared by the instances, once more.
Larger ones serve more where more comes than that: then requests are in time only if they come late
enough in an execution, and the others are refused.

Nothing waits while an instance is free, unless requests had to be refused: those were behind a
batch that had just begun, and would be in it had it waited for as long as the target allows.

What the times do not say (the way to the executor, a noisy machine) is learnt from outcomes: a
margin below the target grows while more than one request in a hundred is late.

Pure: events and the time in, decisions out.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from math import ceil, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import Unavailable
from nereid_scheduler.batching.queues import request_prefix
from nereid_scheduler.batching.service_times import ServiceTimes, steps_up_to

if TYPE_CHECKING:
    from nereid_scheduler.batching.dynamic_batcher import DynamicBatcher
    from nereid_scheduler.core.requests.entry import Batch, Entry

# The part of the requests that may be late.
_MISSED: Final = 0.01
# Of the target: how much the margin grows with a batch of which all are late, and its bound.
_GAIN: Final = 0.05
_MOST_MARGIN: Final = 0.5
# How often decisions are taken anew, and the arrival rate is measured.
_PLAN_NS: Final = 20_000_000
_RATE_NS: Final = 250_000_000
# The weight of the newest batch in the mean rows of a request.
_WEIGHT: Final = 0.05
# Of the rate that a size serves: what a larger one has to add.
_WORTH: Final = 0.02
# Bursts are so many times what is served without refusals.
_BURST: Final = 1.5
# The part of the requests that may be refused without batches waiting for more. From then on the
# delay shrinks by this factor with each measurement, until it is a small part.
_FEW_REFUSED: Final = 0.005
_DELAY_DECAY: Final = 0.8
_LEAST_DELAY: Final = 0.1
# A target that could not be met can again when a request takes less than this part of it.
_MET_AGAIN: Final = 0.95


class Plan(NamedTuple):
    """What has been decided.

    size: of the largest batch, in rows. delay_ns: how long a batch waits for more while an instance
    is free. execution_ns: that batch takes, or nearly always less; 0: not measured.
    """

    size: int
    delay_ns: int
    execution_ns: int


class _Sent(NamedTuple):
    """A batch that an instance has, when it is expected to end, and the plan that it was made by.

    number: orders those with the same end.
    """

    end_ns: int
    number: int
    plan: Plan


class LatencyTarget:
    """Of one model version, on all its instances. A Control of its queue."""

    def __init__(
        self, target_ns: int, max_batch_size: int, batcher: DynamicBatcher | None = None
    ) -> None:
        """batcher: closes batches as planned; None: each request executes by itself."""
        self.target_ns = target_ns
        # False: executing a single request takes longer than that.
        self.reachable = True
        # Requests that were served later than that.
        self.missed = 0
        # The present one, and that of the batch that an instance has last executed.
        self.plan = self.executed_plan = Plan(1, 0, 0)
        self._batcher = batcher
        self._steps = steps_up_to(1 if batcher is None else max_batch_size)
        self._times = ServiceTimes()
        # Rows of a request, on average.
        self._rows = 1.0
        self._instances = 1
        self._margin_ns = 0.0
        # As of the last decisions: how long a request may take, and what executing one does.
        self.held_ns = float(target_ns)
        self.least_ns = 0
        self._planned_ns = 0
        # Of the present measurement: its beginning, what came, and what of it was refused.
        self._since_ns = 0
        self._arrivals = 0
        self._refused = 0
        # The rate of the ones before, and the part of the time left that batches wait for.
        self._per_ns = 0.0
        self._delay_part = 0.0
        # The last time that all executions became longer or shorter, and how often they have.
        self._shifted_ns = 0
        self._shifts = 0
        self._has_excess = False
        # What instances have, by batch; and by expected end, the earliest first.
        self._sent: dict[Batch, _Sent] = {}
        self._ends: list[_Sent] = []
        self._number = 0
        # When the queued requests came, the oldest first.
        self._queued_ns: deque[int] = deque()
        self._apply()

    @property
    def executing(self) -> int:
        """How many batches instances have."""
        return len(self._sent)

    # ---- which requests are refused

    def admit(self, pending: int, ahead: int, instances: int, now_ns: int) -> bool:  # noqa: ARG002 - of Control
        self._arrivals += 1
        if not self._is_in_time(ahead, instances, now_ns):
            self._refused += 1
            return False
        self._queued_ns.append(now_ns)
        return True

    def excess(self, pending: int, instances: int, now_ns: int) -> int:
        """Those that will be late, since executions take longer than when they were admitted."""
        if not self._has_excess:
            return 0
        self._has_excess = False
        in_time, most = 0, pending
        while in_time < most:
            middle = (in_time + most) // 2
            if self._is_in_time(middle, instances, now_ns):
                in_time = middle + 1
            else:
                most = middle
        return pending - in_time

    def refusal(self, entry: Entry) -> Unavailable:
        return Unavailable(
            f"{request_prefix(entry.request.request_id)}Request cannot be served within the model's"
            f" target_p99_us of {self.target_ns // 1000}"
        )

    def _is_in_time(self, ahead: int, instances: int, now_ns: int) -> bool:
        """Whether one more request behind so many would be, and those in its batch still are."""
        plan, times, ends = self.plan, self._times, self._ends
        if not plan.execution_ns:
            return True
        requests = max(1, int(plan.size / self._rows))
        batches, mates = divmod(ahead, requests)
        free = max(0, instances - len(ends))
        if batches < free:
            return True
        rounds, place = divmod(batches, instances)
        start_ns = now_ns
        if place >= free:
            # That instance is free when the last batch that it has ends.
            start_ns = self._free_ns(place - free, instances, now_ns)
        start_ns += rounds * plan.execution_ns
        size = ceil((mates + 1) * self._rows)
        first = batches * requests
        if mates and first < len(self._queued_ns):
            done_ns = start_ns + times.mean_ns(size) * times.spread
            if done_ns - self._queued_ns[first] > self.held_ns:
                return False
        # With room for those that come until then: had each one just enough, batches were small.
        coming = (start_ns - now_ns) * self._per_ns * self._rows
        size = max(size, min(plan.size, int(size + coming)))
        return start_ns + times.mean_ns(size) * times.spread - now_ns <= self.held_ns

    def _free_ns(self, place: int, instances: int, now_ns: int) -> int:
        """When that one of the instances is free that have batches, the earliest first."""
        last = self._ends[-instances:]
        if last[0].end_ns > now_ns:
            return last[place].end_ns
        # A batch that is overdue takes as long again as it has been.
        ends_ns = (each.end_ns for each in last)
        return sorted(end if end > now_ns else 2 * now_ns - end for end in ends_ns)[place]

    # ---- what becomes of batches

    def on_lone(self, batch: Batch, instances: int, now_ns: int) -> None:
        self._instances = instances
        self._arrivals += 1
        self._expect(batch, now_ns, now_ns)

    def on_dequeued(self, batch: Batch, pending: int, instances: int, now_ns: int) -> None:
        self._instances = instances
        queued_ns, ends = self._queued_ns, self._ends
        while len(queued_ns) > pending:
            queued_ns.popleft()
        start_ns = now_ns
        if len(ends) >= instances:
            # It waits at an instance for the end of the batch before it.
            start_ns = self._free_ns(0, instances, now_ns)
        self._expect(batch, start_ns, now_ns)

    def _expect(self, batch: Batch, start_ns: int, now_ns: int) -> None:
        self._rows += _WEIGHT * (batch.size / len(batch.entries) - self._rows)
        self._number += 1
        end_ns = max(start_ns, now_ns) + int(self._times.mean_ns(batch.size))
        self._sent[batch] = sent = _Sent(end_ns, self._number, self.plan)
        insort(self._ends, sent)

    def forget(self, batch: Batch) -> None:
        """No instance has this batch any more."""
        sent = self._sent.pop(batch, None)
        if sent is not None:
            self._ends.remove(sent)
            self.executed_plan = sent.plan

    def on_executed(self, batch: Batch, started_ns: int, finished_ns: int) -> bool:
        """An instance has executed a batch; returns whether `reachable` has changed."""
        self.forget(batch)
        times, entries = self._times, batch.entries
        times.record(batch.size, finished_ns - started_ns, finished_ns)
        latest_ns = finished_ns - self.target_ns
        missed = sum(entry.received_ns < latest_ns for entry in entries)
        self.missed += missed
        # One that was admitted by times that no longer hold says nothing about those that do.
        if entries[0].received_ns > self._shifted_ns:
            part = missed / len(entries) - _MISSED
            margin_ns = self._margin_ns + _GAIN * part * self.target_ns
            self._margin_ns = min(max(margin_ns, 0.0), _MOST_MARGIN * self.target_ns)
        if times.shifts != self._shifts:
            self._shifts, self._shifted_ns = times.shifts, finished_ns
            self._margin_ns = 0.0
            self._has_excess = True
        elif finished_ns - self._planned_ns < _PLAN_NS and self.plan.execution_ns:
            return False
        return self._decide(finished_ns)

    # ---- decisions

    def _decide(self, now_ns: int) -> bool:
        """Take them anew; returns whether `reachable` has changed."""
        self._planned_ns = now_ns
        if now_ns - self._since_ns >= _RATE_NS:
            self._end_measurement(now_ns)
        times = self._times
        times.forget_stale(now_ns)
        if not times.largest:
            return False
        was_reachable = self.reachable
        rows = ceil(self._rows)
        self.least_ns = int(times.mean_ns(rows))
        if times.knows_up_to(rows):
            part = 1.0 if was_reachable else _MET_AGAIN
            self.reachable = self.least_ns <= part * self.target_ns
        self.held_ns = self.target_ns - self._margin_ns
        if not self.reachable:
            # What can be held instead.
            least_ns = self.least_ns * times.spread
            self.held_ns = max(self.held_ns, least_ns * (1 + 1 / self._instances))
        self.plan = self._best_plan()
        self._apply()
        return self.reachable is not was_reachable

    def _end_measurement(self, now_ns: int) -> None:
        per_ns = self._arrivals / (now_ns - self._since_ns)
        # Half of each: a burst is no rate.
        self._per_ns = (self._per_ns + per_ns) / 2 if self._per_ns else per_ns
        if self._refused > _FEW_REFUSED * self._arrivals:
            self._delay_part = 1.0
        else:
            self._delay_part *= _DELAY_DECAY
            if self._delay_part < _LEAST_DELAY:
                self._delay_part = 0.0
        self._arrivals = self._refused = 0
        self._since_ns = now_ns

    def _best_plan(self) -> Plan:
        times, instances, held_ns = self._times, self._instances, self.held_ns
        # Larger sizes than known ones are tried, one doubling after the other.
        sizes = [size for size in self._steps if size <= 2 * times.largest]
        means = [(size, times.mean_ns(size)) for size in sizes]
        # Whenever a request comes, it is in time.
        calm = [
            (instances * size / mean_ns, size)
            for size, mean_ns in means
            if mean_ns * times.spread * (1 + 1 / instances) <= held_ns
        ]
        offered = self._per_ns * self._rows
        rate, size = _smallest_of_best(calm)
        if calm:
            # A smaller load needs no other size: its batches are smaller by themselves.
            offered = max(offered, _BURST * rate)
        # Only what comes in this part of the time between two executions is.
        tight = []
        for each, mean_ns in means:
            part = (held_ns - mean_ns * times.spread) * instances / mean_ns
            if part > 0:
                tight.append((min(offered * min(part, 1.0), instances * each / mean_ns), each))
        tight_rate, tight_size = _smallest_of_best(tight)
        if tight_rate > rate * (1 + _WORTH):
            size = tight_size
        if not calm:
            size = max(size, self._size_for_bursts(sizes, offered))
        execution_ns = times.mean_ns(size) * times.spread
        delay_ns = 0.0
        # A single instance should not wait, unless nothing that comes meanwhile is in time.
        if instances > 1 or not calm:
            delay_ns = self._delay_part * max(0.0, held_ns - execution_ns)
        return Plan(size, int(delay_ns), int(execution_ns))

    def _size_for_bursts(self, sizes: list[int], offered: float) -> int:
        """One for all that come, at random, in the time that its execution leaves."""
        largest = sizes[0]
        for size in sizes:
            left_ns = self.held_ns - self._times.mean_ns(size) * self._times.spread
            if left_ns <= 0:
                break
            largest = size
            if size > offered * left_ns + 2 * sqrt(offered * left_ns):
                break
        return largest

    def _apply(self) -> None:
        if self._batcher is not None:
            self._batcher.max_size, self._batcher.delay_ns = self.plan.size, self.plan.delay_ns


def _smallest_of_best(rates: list[tuple[float, int]]) -> tuple[float, int]:
    """Of rates and their sizes, the smallest size whose rate is nearly the highest; of none: 0."""
    if not rates:
        return 0.0, 0
    enough = max(rates)[0] * (1 - _WORTH)
    return next(each for each in rates if each[0] >= enough)
