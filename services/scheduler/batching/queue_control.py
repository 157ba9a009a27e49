"""Adaptive admission (--admission=codel): which requests a model's queue refuses under overload.

CoDel's criterion: a queue is too long if it has been longer than it takes to drain in the target
time for a whole interval; shorter bursts pass. Then requests are refused that would wait for longer
than the target, until for an interval none has to be. How long a request will wait is what is in
front of it, by the rate at which requests leave the queue (Little's law). So those of less urgent
levels are refused first, since all others are in front of them, and a refused request costs nothing
but its refusal. What had queued up until then is cut to the same length, from its end.

Pure: events and the time in, decisions out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nereid.services.scheduler.batching.queues import queue_full

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.errors import NereidError
    from nereid.services.scheduler.requests.entry import Batch, Entry


@dataclass(frozen=True, slots=True)
class AdmissionTarget:
    """How long requests may queue, and how long a queue may be longer than that."""

    target_ns: int
    interval_ns: int


class QueueControl:
    """Of one queue."""

    __slots__ = (
        "_good_ns",
        "_interval_ns",
        "_left",
        "_per_ns",
        "_refused_ns",
        "_since_ns",
        "_target_ns",
        "has_excess",
        "overloaded",
    )

    def __init__(self, target: AdmissionTarget) -> None:
        self._target_ns = target.target_ns
        self._interval_ns = target.interval_ns
        # Requests are refused.
        self.overloaded = False
        # The queue that built up until then is longer than the limit.
        self.has_excess = False
        # When the queue was last short enough; None: nothing was queued yet.
        self._good_ns: int | None = None
        # The last refusal.
        self._refused_ns = 0
        # At which requests leave the queue while there are any; 0.0: not measured.
        self._per_ns = 0.0
        # The beginning of the present measurement, and what has left since.
        self._since_ns = 0
        self._left = 0

    def admit(self, pending: int, ahead: int, least: int, now_ns: int) -> bool:
        """Whether one more request may be queued.

        pending: queued requests. ahead: those that are in front of it. least: so many are always
        admitted, as the instances can take them at once.
        """
        if self.overloaded and now_ns - self._refused_ns > self._interval_ns:
            # There may be none that wait, and the rate is that of what came.
            self.overloaded = False
            self._per_ns = 0.0
            self._good_ns = None
            self._restart(now_ns)
        limit = self.limit(least)
        if not self.overloaded:
            if not pending:
                # The rate is measured while requests wait.
                self._restart(now_ns)
            good_ns = self._good_ns
            if good_ns is None or not self._per_ns or pending < limit:
                self._good_ns = now_ns
                return True
            if now_ns - good_ns <= self._interval_ns:
                return True
            self.overloaded = self.has_excess = True
            self._refused_ns = now_ns
        if ahead < limit:
            return True
        self._refused_ns = now_ns
        return False

    def on_dequeued(self, count: int, pending: int, least: int, now_ns: int) -> None:
        """So many requests have left the queue for an instance; pending: those behind them."""
        self._left += count
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns >= self._interval_ns:
            per_ns = self._left / elapsed_ns
            # Half of each: executions may be about as long as the interval.
            self._per_ns = (self._per_ns + per_ns) / 2 if self._per_ns else per_ns
            self._restart(now_ns)
        if pending < self.limit(least):
            self._good_ns = now_ns

    def limit(self, least: int) -> float:
        """How many requests leave the queue within the target time."""
        return max(self._per_ns * self._target_ns, least)

    def _restart(self, now_ns: int) -> None:
        self._since_ns = now_ns
        self._left = 0


class ControllableBatcher(Protocol):
    """A WaitingBatcher, of requests that do not belong to sequences."""

    pending: int

    def pending_ahead(self, level: int) -> int:
        """How many entries are executed before one of this level that would be queued now."""

    def last_entries(self, count: int) -> list[Entry]:
        """At most so many of those that would be executed last, and are not in a batch yet."""

    def enqueue(self, entry: Entry, now_ns: int) -> None: ...
    def requeue(self, entries: Sequence[Entry]) -> None: ...
    def remove_entry(self, entry: Entry) -> bool: ...
    def next_batch(self, now_ns: int, instances: int) -> Batch | None: ...
    def next_waiting_batch(self, now_ns: int, instances: int) -> Batch | None: ...
    def lone_batch(self, entry: Entry, now_ns: int) -> Batch | None: ...
    def form_batches(self, now_ns: int, instances: int) -> None: ...
    def expire_entries(self, now_ns: int) -> list[tuple[Entry, NereidError]]: ...
    def wake_at_ns(self, now_ns: int) -> int | None: ...


class AdaptiveBatcher:
    """A WaitingBatcher whose queue is that of another one, and controlled."""

    def __init__(
        self, batcher: ControllableBatcher, max_batch_size: int, target: AdmissionTarget
    ) -> None:
        self._batcher = batcher
        self._max_batch_size = max(1, max_batch_size)
        self._control = QueueControl(target)
        # The next batches of all instances: with fewer queued, batches would be smaller.
        self._least = self._max_batch_size
        # Nothing comes between an instance and these.
        self.requeue = batcher.requeue
        self.remove_entry = batcher.remove_entry
        self.lone_batch = batcher.lone_batch
        self.form_batches = batcher.form_batches
        self.wake_at_ns = batcher.wake_at_ns

    @property
    def pending(self) -> int:
        return self._batcher.pending

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        batcher = self._batcher
        pending = batcher.pending
        # With a caller it serves a request that was accepted: refused, that one's work was wasted.
        if not entry.request.caller:
            ahead = batcher.pending_ahead(entry.level)
            if not self._control.admit(pending, ahead, self._least, now_ns):
                raise queue_full(entry)
        batcher.enqueue(entry, now_ns)

    def expire_entries(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        batcher, control = self._batcher, self._control
        expired = batcher.expire_entries(now_ns)
        if control.has_excess:
            control.has_excess = False
            excess = batcher.pending - int(control.limit(self._least))
            for entry in batcher.last_entries(excess):
                # As were they refused now.
                if not entry.request.caller:
                    batcher.remove_entry(entry)
                    expired.append((entry, queue_full(entry)))
        return expired

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:
        return self._record(self._batcher.next_batch(now_ns, instances), now_ns, instances)

    def next_waiting_batch(self, now_ns: int, instances: int) -> Batch | None:
        return self._record(self._batcher.next_waiting_batch(now_ns, instances), now_ns, instances)

    def _record(self, batch: Batch | None, now_ns: int, instances: int) -> Batch | None:
        if batch is not None:
            self._least = self._max_batch_size * max(1, instances)
            count, pending = len(batch.entries), self._batcher.pending
            self._control.on_dequeued(count, pending, self._least, now_ns)
        return batch
