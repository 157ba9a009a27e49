"""Batching that meets a latency target (a model's parameter target_p99_us).

The target must allow for one execution plus the wait for a free instance: one execution divided by
the number of instances. The fastest batch size within the target is chosen. Under higher loads,
larger batches serve more requests, and requests that would be late are refused.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import Unavailable
from nereid_scheduler.batching.policies.client_shares import ClientShares, rows_of
from nereid_scheduler.batching.policies.sizing import Sizing
from nereid_scheduler.batching.policies.target_plan import Plan, best_plan
from nereid_scheduler.batching.queues import request_prefix
from nereid_scheduler.batching.times.row_times import steps_up_to

if TYPE_CHECKING:
    from nereid_scheduler.batching.times.row_times import RowTimes
    from nereid_scheduler.core.requests.entry import Batch, Entry

# If more requests than this fraction are late, the margin below the target grows.
_MISSED: Final = 0.01
# Growth of the margin after a batch of late requests, and its maximum, as fractions of the target.
_GAIN: Final = 0.05
_MAX_MARGIN: Final = 0.5
# Minimum time between plans, and minimum length of a measurement of the arrival rate.
_PLAN_NS: Final = 20_000_000
_RATE_NS: Final = 250_000_000
# Weight of the newest batch in the average number of rows of a request.
_WEIGHT: Final = 0.05
# Batches wait after a measurement with more refusals. With fewer, the delay decays to 0.
_FEW_REFUSED: Final = 0.005
_DELAY_DECAY: Final = 0.8
_MIN_DELAY: Final = 0.1
# A target that was too short is reachable again if a request takes less than this part of it.
_MET_AGAIN: Final = 0.95


class _Sent(NamedTuple):
    """Batch that an instance has: its expected end, and the plan that it was formed by."""

    end_ns: int
    plan: Plan


class _SentBatches:
    """Batches that instances have, and when each is expected to end."""

    def __init__(self) -> None:
        self._by_batch: dict[Batch, _Sent] = {}
        # Sorted by the expected ends.
        self._ends: list[_Sent] = []

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, batch: Batch, end_ns: int, plan: Plan) -> None:
        """Add a batch that was formed by this plan."""
        self._by_batch[batch] = sent = _Sent(end_ns, plan)
        insort(self._ends, sent)

    def remove(self, batch: Batch) -> Plan | None:
        """Remove a batch; return its plan, or `None` if no instance has it."""
        sent = self._by_batch.pop(batch, None)
        if sent is None:
            return None
        self._ends.remove(sent)
        return sent.plan

    def free_ns(self, place: int, instances: int, now_ns: int) -> int:
        """Return when the busy instance at `place` becomes free; 0 is the first to become free."""
        last = self._ends[-instances:]
        if last[0].end_ns > now_ns:
            return last[place].end_ns
        # If a batch is overdue by some time, expect it to end after the same time again.
        ends_ns = (sent.end_ns for sent in last)
        return sorted(end if end > now_ns else 2 * now_ns - end for end in ends_ns)[place]


class _Arrivals:
    """The rate at which requests come, and whether too many are refused."""

    def __init__(self) -> None:
        self.count = self.refused = 0
        self._since_ns = 0
        # Arrivals per nanosecond, and the batches' delay as a fraction of the maximum delay.
        self.per_ns = 0.0
        self.delay_part = 0.0

    def measure(self, now_ns: int) -> None:
        """End a measurement that is long enough, and begin the next one."""
        if now_ns - self._since_ns < _RATE_NS:
            return
        per_ns = self.count / (now_ns - self._since_ns)
        # Average the rates, so that a single burst does not decide.
        self.per_ns = (self.per_ns + per_ns) / 2 if self.per_ns else per_ns
        if self.refused > _FEW_REFUSED * self.count:
            self.delay_part = 1.0
        else:
            self.delay_part *= _DELAY_DECAY
            if self.delay_part < _MIN_DELAY:
                self.delay_part = 0.0
        self.count = self.refused = 0
        self._since_ns = now_ns


class LatencyTarget(Sizing):
    """Control of one model version's queue, for all instances together."""

    def __init__(self, target_ns: int, max_batch_size: int, times: RowTimes) -> None:
        """Record each batch in `times` before on_executed()."""
        super().__init__(1, preferred=(max_batch_size,))
        self.target_ns = target_ns
        # False if a single request takes longer than the target.
        self.reachable = True
        self.missed = 0
        # `executed_plan`: plan of the last executed batch.
        self.plan = self.executed_plan = Plan(1, 0, 0)
        self._steps = steps_up_to(max_batch_size)
        self._times = times
        # Average number of rows of a request.
        self._rows = 1.0
        self._instances = 1
        self._margin_ns = 0.0
        # `held_ns`: how long a request may take. `least_ns`: execution time of a single request.
        self.held_ns = float(target_ns)
        self.least_ns = 0
        self._planned_ns = 0
        self._arrivals = _Arrivals()
        # When the execution times of all sizes last changed, and how often they have changed.
        self._shifted_ns = 0
        self._shifts = 0
        self._has_excess = False
        self._sent = _SentBatches()
        self.shares = ClientShares()
        self._queued_ns: deque[int] = deque()

    @property
    def executing(self) -> int:
        """Number of batches that instances have."""
        return len(self._sent)

    # ---- refusals

    def admit(
        self,
        entry: Entry,
        pending: int,
        ahead: int,
        instances: int,
        now_ns: int,
    ) -> bool:
        """Return whether a new request, behind `ahead` others in the queue, would be in time."""
        self._arrivals.count += 1
        rows = rows_of(entry)
        if not self._is_in_time(rows, ahead, pending, instances, now_ns):
            self._arrivals.refused += 1
            return False
        self._queued_ns.append(now_ns)
        return True

    def excess(self, pending: int, instances: int, now_ns: int) -> int:
        """Return how many pending requests will be late, after executions have become longer."""
        if not self._has_excess:
            return 0
        self._has_excess = False
        misses_target = partial(self._misses_target, ceil(self._rows), pending, instances, now_ns)
        return pending - bisect_left(range(pending), 1, key=misses_target)

    def _misses_target(
        self, rows: int, pending: int, instances: int, now_ns: int, ahead: int
    ) -> bool:
        return not self._is_in_time(rows, ahead, pending, instances, now_ns)

    def displaced_by(self, entry: Entry, instances: int) -> list[Entry] | None:
        """Return queued entries to refuse in place of a late one; `None` to refuse that."""
        return self.shares.displaced_by(entry, self._capacity(instances))

    def last_entries(self, count: int, instances: int) -> list[Entry]:
        """Return up to `count` queued entries to refuse, of clients beyond their share first."""
        return self.shares.last_entries(count, self._capacity(instances))

    def _capacity(self, instances: int) -> float:
        """Return how many rows are executed within the time that a request may take.

        At least one batch executes and one waits at each instance, so that two clients can share
        an instance also if the time is short.
        """
        plan = self.plan
        return instances * plan.size * max(2.0, self.held_ns / plan.execution_ns)

    def refusal(self, entry: Entry) -> Unavailable:
        """Return the error of a request that would be late."""
        return Unavailable(
            f"{request_prefix(entry.request.request_id)}Request cannot be served within the model's"
            f" target_p99_us of {self.target_ns // 1000}"
        )

    def _is_in_time(self, rows: int, ahead: int, pending: int, instances: int, now_ns: int) -> bool:
        """Return False if the new request, or the oldest in its batch, would be late."""
        plan, times, sent = self.plan, self._times, self._sent
        if not plan.execution_ns:
            return True
        # Average rows of the requests that wait. Earlier ones of other clients must not count.
        queued_rows = max(1.0, self.shares.queued_rows / pending) if pending else self._rows
        requests = max(1, int(plan.size / queued_rows))
        batches, mates = divmod(ahead, requests)
        free = max(0, instances - len(sent))
        if batches < free:
            return True
        rounds, place = divmod(batches, instances)
        start_ns = now_ns
        if place >= free:
            # The batch starts when a busy instance has ended its batch.
            start_ns = sent.free_ns(place - free, instances, now_ns)
        start_ns += rounds * plan.execution_ns
        size = ceil(mates * queued_rows) + rows
        first = batches * requests
        if mates and first < len(self._queued_ns):
            done_ns = start_ns + times.mean_ns(size) * times.spread
            if done_ns - self._queued_ns[first] > self.held_ns:
                return False
        # Leave room for requests that come before the batch starts. Otherwise batches become small.
        coming = (start_ns - now_ns) * self._arrivals.per_ns * self._rows
        size = max(size, min(plan.size, int(size + coming)))
        return start_ns + times.mean_ns(size) * times.spread - now_ns <= self.held_ns

    # ---- batches

    def on_dequeued(self, batch: Batch, pending: int, instances: int, now_ns: int) -> None:
        """Record a batch that has left the queue, and estimate when it ends."""
        self._instances = instances
        queued_ns, sent = self._queued_ns, self._sent
        while len(queued_ns) > pending:
            queued_ns.popleft()
        start_ns = now_ns
        if len(sent) >= instances:
            # The batch waits at an instance until the batch before it ends.
            start_ns = max(now_ns, sent.free_ns(0, instances, now_ns))
        self._rows += _WEIGHT * (batch.size / len(batch.entries) - self._rows)
        self.shares.begin(batch.entries)
        sent.add(batch, start_ns + int(self._times.mean_ns(batch.size)), self.plan)

    def forget(self, batch: Batch) -> None:
        """Forget a batch that was executed, lost or given back."""
        plan = self._sent.remove(batch)
        if plan is None:
            return
        self.executed_plan = plan
        for entry in batch.entries:
            self.shares.remove(entry)

    def on_executed(self, batch: Batch, finished_ns: int) -> bool:
        """Record that an instance has executed a batch; return whether `reachable` has changed."""
        times, entries = self._times, batch.entries
        latest_ns = finished_ns - self.target_ns
        overdue = [entry for entry in entries if entry.received_ns < latest_ns]
        self.missed += len(overdue)
        # Requests that were known to be late do not show that the estimate is too short.
        missed = len(overdue) - sum(map(self._exceeds_target_anyway, overdue))
        self.forget(batch)
        # Earlier requests were admitted by the old execution times, so they do not count.
        if entries[0].received_ns > self._shifted_ns:
            part = missed / len(entries) - _MISSED
            margin_ns = self._margin_ns + _GAIN * part * self.target_ns
            self._margin_ns = min(max(margin_ns, 0.0), _MAX_MARGIN * self.target_ns)
        if times.shifts != self._shifts:
            self._shifts, self._shifted_ns = times.shifts, finished_ns
            self._margin_ns = 0.0
            self._has_excess = True
        elif finished_ns - self._planned_ns < _PLAN_NS and self.plan.execution_ns:
            return False
        return self._decide(finished_ns)

    def _exceeds_target_anyway(self, entry: Entry) -> bool:
        execution_ns = self._times.mean_ns(rows_of(entry))
        return execution_ns > self.target_ns or self.shares.exceeds_target(entry)

    def _decide(self, now_ns: int) -> bool:
        """Make a new plan; return whether `reachable` has changed."""
        self._planned_ns = now_ns
        arrivals, times = self._arrivals, self._times
        arrivals.measure(now_ns)
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
            least_ns = self.least_ns * times.spread
            self.held_ns = max(self.held_ns, least_ns * (1 + 1 / self._instances))
        offered = arrivals.per_ns * self._rows
        self.plan = best_plan(
            times, self._steps, self._instances, self.held_ns, offered, arrivals.delay_part
        )
        self.max_size, self.delay_ns = self.plan.size, self.plan.delay_ns
        return self.reachable is not was_reachable
