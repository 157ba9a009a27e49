"""Adaptive admission (--admission=codel): decides which requests a queue refuses under overload.

As in CoDel, a queue is overloaded if for a whole interval it holds more requests than can leave
within the target time. It then refuses each request that would wait longer. Expected wait: requests
ahead divided by the rate at which they leave (Little's law).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nereid_scheduler.batching.queues import queue_full

if TYPE_CHECKING:
    from nereid.core.errors import Unavailable
    from nereid_scheduler.batching.policies.client_shares import ClientShares
    from nereid_scheduler.core.requests.entry import Batch, Entry


@dataclass(frozen=True, slots=True)
class AdmissionTarget:
    """Maximum time in the queue, and how long requests may exceed it before any is refused."""

    target_ns: int
    interval_ns: int


class QueueControl:
    """Control that refuses requests while its queue is overloaded."""

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
        self.overloaded = False
        # True until excess() reports the requests beyond the limit.
        self._has_excess = False
        # Last time at which the queue was within its limit.
        self._good_ns: int | None = None
        self._refused_ns = 0
        # Requests per nanosecond that leave while others wait; 0.0 until measured.
        self._per_ns = 0.0
        # Current measurement: its start, and how many requests have left the queue since.
        self._since_ns = 0
        self._left = 0

    def admit(
        self,
        entry: Entry,  # noqa: ARG002 - of Control
        pending: int,
        ahead: int,
        instances: int,
        now_ns: int,
    ) -> bool:
        """Return whether a new request may be queued, behind `ahead` of the pending requests."""
        if self.overloaded and now_ns - self._refused_ns > self._interval_ns:
            # If no request waits any more, the old rate says only how fast requests came.
            self.overloaded = False
            self._per_ns = 0.0
            self._good_ns = None
            self._restart(now_ns)
        limit = self._limit(instances)
        if not self.overloaded:
            if not pending:
                # The rate is measured only while requests wait.
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
        """Measure the rate at which requests leave the queue."""
        self._left += len(batch.entries)
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns >= self._interval_ns:
            per_ns = self._left / elapsed_ns
            # An execution may take about as long as the interval, so one measurement is inexact.
            self._per_ns = (self._per_ns + per_ns) / 2 if self._per_ns else per_ns
            self._restart(now_ns)
        if pending < self._limit(instances):
            self._good_ns = now_ns

    def excess(self, pending: int, instances: int, now_ns: int) -> int:  # noqa: ARG002 - of Control
        """Return how many requests exceed the queue's limit when an overload begins; else 0."""
        if not self._has_excess:
            return 0
        self._has_excess = False
        return pending - int(self._limit(instances))

    @property
    def shares(self) -> ClientShares | None:
        """Return `None`: requests are refused in the order in which they come."""
        return None

    def displaced_by(self, entry: Entry, instances: int) -> list[Entry] | None:  # noqa: ARG002 - of Control
        """Return `None`: no request is refused in place of another."""
        return None

    def last_entries(self, count: int, instances: int) -> list[Entry] | None:  # noqa: ARG002 - of Control
        """Return `None`: the last ones in the queue are refused."""
        return None

    def refusal(self, entry: Entry) -> Unavailable:
        """Return Triton's error of a full queue."""
        return queue_full(entry)

    def _limit(self, instances: int) -> float:
        """Return how many requests leave in the target time, at least one batch per instance."""
        return max(self._per_ns * self._target_ns, self._max_batch_size * instances)

    def _restart(self, now_ns: int) -> None:
        self._since_ns = now_ns
        self._left = 0


class Control(Protocol):
    """Interface for deciding which requests a queue refuses; `instances` is at least 1."""

    def admit(self, entry: Entry, pending: int, ahead: int, instances: int, now_ns: int) -> bool:
        """Return whether a new request may be queued, behind `ahead` of the pending requests."""

    def excess(self, pending: int, instances: int, now_ns: int) -> int:
        """Return how many queued requests must be refused now. They are the last in the queue."""

    @property
    def shares(self) -> ClientShares | None:
        """Return the clients' shares; `None` if all clients are treated as one."""

    def displaced_by(self, entry: Entry, instances: int) -> list[Entry] | None:
        """Return queued entries to refuse in place of a new one that was not admitted.

        `None` means that the new entry is refused.
        """

    def last_entries(self, count: int, instances: int) -> list[Entry] | None:
        """Return up to `count` queued entries to refuse; `None` for the last ones in the queue."""

    def refusal(self, entry: Entry) -> Unavailable:
        """Return the error to send for a refused request."""

    def on_dequeued(self, batch: Batch, pending: int, instances: int, now_ns: int) -> None:
        """Record that a batch has left the queue for an instance; `pending` requests remain."""
