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
from typing import TYPE_CHECKING, Any, Protocol

from nereid_scheduler.batching.queues import queue_full

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.errors import NereidError, Unavailable
    from nereid_scheduler.core.instances.router import Router
    from nereid_scheduler.core.requests.entry import Batch, Entry


@dataclass(frozen=True, slots=True)
class AdmissionTarget:
    """How long requests may queue, and how long a queue may be longer than that."""

    target_ns: int
    interval_ns: int


class QueueControl:
    """Of one queue."""

    __slots__ = (
        "_good_ns",
        "_has_excess",
        "_interval_ns",
        "_left",
        "_max_batch_size",
        "_per_ns",
        "_refused_ns",
        "_since_ns",
        "_target_ns",
        "overloaded",
    )

    def __init__(self, target: AdmissionTarget, max_batch_size: int = 1) -> None:
        self._max_batch_size = max(1, max_batch_size)
        self._target_ns = target.target_ns
        self._interval_ns = target.interval_ns
        # Requests are refused.
        self.overloaded = False
        # The queue that built up until then is longer than the limit.
        self._has_excess = False
        # When the queue was last short enough; None: nothing was queued yet.
        self._good_ns: int | None = None
        # The last refusal.
        self._refused_ns = 0
        # At which requests leave the queue while there are any; 0.0: not measured.
        self._per_ns = 0.0
        # The beginning of the present measurement, and what has left since.
        self._since_ns = 0
        self._left = 0

    def admit(self, pending: int, ahead: int, instances: int, now_ns: int) -> bool:
        """Whether one more request may be queued."""
        if self.overloaded and now_ns - self._refused_ns > self._interval_ns:
            # There may be none that wait, and the rate is that of what came.
            self.overloaded = False
            self._per_ns = 0.0
            self._good_ns = None
            self._restart(now_ns)
        limit = self._limit(instances)
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
            self.overloaded = self._has_excess = True
            self._refused_ns = now_ns
        if ahead < limit:
            return True
        self._refused_ns = now_ns
        return False

    def on_dequeued(self, batch: Batch, pending: int, instances: int, now_ns: int) -> None:
        self._left += len(batch.entries)
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns >= self._interval_ns:
            per_ns = self._left / elapsed_ns
            # Half of each: executions may be about as long as the interval.
            self._per_ns = (self._per_ns + per_ns) / 2 if self._per_ns else per_ns
            self._restart(now_ns)
        if pending < self._limit(instances):
            self._good_ns = now_ns

    def on_lone(self, batch: Batch, instances: int, now_ns: int) -> None:
        """Nothing is measured while nothing waits."""

    def excess(self, pending: int, instances: int, now_ns: int) -> int:  # noqa: ARG002 - of Control
        if not self._has_excess:
            return 0
        self._has_excess = False
        return pending - int(self._limit(instances))

    def refusal(self, entry: Entry) -> Unavailable:
        return queue_full(entry)

    def _limit(self, instances: int) -> float:
        """How many requests leave the queue within the target time; the next batches of all
        instances are always admitted: with fewer queued, batches would be smaller.
        """
        return max(self._per_ns * self._target_ns, self._max_batch_size * instances)

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
    def closes_ns(self, now_ns: int) -> int | None: ...
    def wake_at_ns(self, now_ns: int) -> int | None: ...


class Control(Protocol):
    """Decides which requests a queue refuses. instances: how many are ready, at least 1."""

    def admit(self, pending: int, ahead: int, instances: int, now_ns: int) -> bool:
        """Whether one more request may be queued, behind `ahead` of the pending ones."""

    def on_lone(self, batch: Batch, instances: int, now_ns: int) -> None:
        """A request has come that an instance executes at once, while nothing waits."""

    def excess(self, pending: int, instances: int, now_ns: int) -> int:
        """How many of the pending requests, the last ones, are to be refused after all."""

    def refusal(self, entry: Entry) -> Unavailable:
        """The error of a request that is refused."""

    def on_dequeued(self, batch: Batch, pending: int, instances: int, now_ns: int) -> None:
        """A batch has left the queue for an instance; pending: the requests behind it."""


class AdaptiveBatcher:
    """A WaitingBatcher whose queue is that of another one, and controlled."""

    def __init__(
        self, batcher: ControllableBatcher, control: Control, router: Router[Any] | None = None
    ) -> None:
        """router: of the instances; None: there is one until next_batch() says otherwise."""
        self.control = control
        self._batcher = batcher
        self._router = router
        self._last_instances = 1
        # Nothing comes between an instance and these.
        self.requeue = batcher.requeue
        self.remove_entry = batcher.remove_entry
        self.form_batches = batcher.form_batches
        self.closes_ns = batcher.closes_ns
        self.wake_at_ns = batcher.wake_at_ns

    @property
    def pending(self) -> int:
        return self._batcher.pending

    @property
    def _instances(self) -> int:
        return (self._router.count if self._router is not None else 0) or self._last_instances

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        batcher = self._batcher
        pending = batcher.pending
        # With a caller it serves a request that was accepted: refused, that one's work was wasted.
        if not entry.request.caller:
            ahead = batcher.pending_ahead(entry.level)
            if not self.control.admit(pending, ahead, self._instances, now_ns):
                raise self.control.refusal(entry)
        batcher.enqueue(entry, now_ns)

    def expire_entries(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        batcher, control = self._batcher, self.control
        expired = batcher.expire_entries(now_ns)
        excess = control.excess(batcher.pending, self._instances, now_ns)
        if excess > 0:
            for entry in batcher.last_entries(excess):
                # As were they refused now.
                if not entry.request.caller:
                    batcher.remove_entry(entry)
                    expired.append((entry, control.refusal(entry)))
        return expired

    def lone_batch(self, entry: Entry, now_ns: int) -> Batch | None:
        batch = self._batcher.lone_batch(entry, now_ns)
        if batch is not None:
            self.control.on_lone(batch, self._instances, now_ns)
        return batch

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:
        return self._record(self._batcher.next_batch(now_ns, instances), now_ns, instances)

    def next_waiting_batch(self, now_ns: int, instances: int) -> Batch | None:
        return self._record(self._batcher.next_waiting_batch(now_ns, instances), now_ns, instances)

    def _record(self, batch: Batch | None, now_ns: int, instances: int) -> Batch | None:
        if batch is not None:
            self._last_instances = instances = max(1, instances)
            self.control.on_dequeued(batch, self._batcher.pending, instances, now_ns)
        return batch
