"""Interface of batchers, the simplest batcher, and the choice of a batcher for a configuration.

In each turn of the event loop the model version enqueues the new entries, asks for a batch for each
free instance, lets the batcher form batches ahead, and asks when to call again.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid.core.known_backends import ENSEMBLE_PLATFORM
from nereid_scheduler.batching.dynamic_batcher import DynamicBatcher
from nereid_scheduler.batching.gathering import Gathering, can_gather
from nereid_scheduler.batching.latency_target import LatencyTarget
from nereid_scheduler.batching.queue_control import AdaptiveBatcher, QueueControl
from nereid_scheduler.batching.queues import Expiries, Fifo, deadline_passed, queue_full
from nereid_scheduler.batching.sequences.direct import DirectBatcher
from nereid_scheduler.batching.sequences.iterative import (
    IterativeDirectBatcher,
    IterativeOldestBatcher,
)
from nereid_scheduler.batching.sequences.oldest import OldestBatcher
from nereid_scheduler.core.instances.router import Router
from nereid_scheduler.core.requests.entry import EXECUTING, QUEUED, Batch, executing_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.errors import NereidError
    from nereid.model_config import ModelConfig
    from nereid_scheduler.batching.queue_control import AdmissionTarget
    from nereid_scheduler.batching.sequences.sequence_batcher import SequenceBatcher
    from nereid_scheduler.core.requests.entry import Entry

__all__ = [
    "Batch",
    "Batcher",
    "DynamicBatcher",
    "FifoBatcher",
    "LatencyTarget",
    "WaitingBatcher",
    "make_batcher",
    "target_of",
]


class Batcher(Protocol):
    """Queue of one model version. Only the object that owns the version's requests may call it.

    Never requeue an entry that was removed, has expired or has had its response.
    """

    @property
    def pending(self) -> int:
        """Number of entries, including those in formed batches."""

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raise Unavailable if the queue is full."""

    def requeue(self, entries: Sequence[Entry]) -> None:
        """Put entries back to the front, in this order; queue limits and timeouts do not apply."""

    def remove_entry(self, entry: Entry) -> bool:
        """Remove an entry that no instance has; return False if the batcher does not have it."""

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:
        """Return an EXECUTING batch for a free instance, or `None` if the instance has to wait."""

    def lone_batch(self, entry: Entry, now_ns: int) -> Batch | None:
        """Return a lone entry's batch, or `None`: then enqueue it. No other entry may wait."""

    def form_batches(self, now_ns: int, instances: int) -> None:
        """Form batches ahead of time, and add entries to the last one."""

    def expire_entries(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        """Remove entries whose queue timeout or deadline has passed; return them with errors."""

    def closes_ns(self, now_ns: int) -> int | None:
        """Return when the next batch's queue delay ends; `None` if no batch is delayed."""

    def wake_at_ns(self, now_ns: int) -> int | None:
        """Return the latest time at which the owner must expire entries and ask for batches."""


# Key: (sequences are iterative, strategy is "oldest").
_STRATEGIES: Final[dict[tuple[bool, bool], Callable[..., SequenceBatcher]]] = {
    (False, False): DirectBatcher,
    (False, True): OldestBatcher,
    (True, False): IterativeDirectBatcher,
    (True, True): IterativeOldestBatcher,
}


def make_batcher(
    config: ModelConfig,
    router: Router[Any] | None = None,
    *,
    max_pending: int = 0,
    admission: AdmissionTarget | None = None,
    client_share: float = 1.0,
) -> Batcher:
    """Return a batcher for a model of this configuration.

    max_pending: maximum number of entries; 0 means no limit. admission: ignored for models with
    sequences, as a sequence must not lose a request. client_share: maximum fraction of the sequence
    slots for one client.
    """
    if config.sequences is not None:
        kind = config.sequences.iterative, config.sequences.oldest is not None
        return _STRATEGIES[kind](
            config, config.sequences, router or Router(), max_pending, client_share
        )
    held = holds_target(config)
    if config.batching is None:
        batcher: FifoBatcher | DynamicBatcher = FifoBatcher(config.name, max_pending)
        max_batch_size = 1
    else:
        max_batch_size = config.max_batch_size
        batching = config.batching
        if held:
            batching = replace(
                batching, preferred_batch_sizes=(max_batch_size,), max_queue_delay_us=0
            )
        batcher = DynamicBatcher(config.name, max_batch_size, batching, max_pending)
    if held:
        closes = batcher if isinstance(batcher, DynamicBatcher) else None
        target = LatencyTarget(config.target_p99_us * 1000, max_batch_size, closes)
        return AdaptiveBatcher(batcher, target, router)
    if admission is None:
        if isinstance(batcher, DynamicBatcher) and can_gather(config):
            batcher.gathering = Gathering()
        return batcher
    return AdaptiveBatcher(batcher, QueueControl(admission, max_batch_size), router)


def target_of(batcher: Batcher) -> LatencyTarget | None:
    """Return the latency target of a batcher from make_batcher(), if any."""
    control = batcher.control if isinstance(batcher, AdaptiveBatcher) else None
    return control if isinstance(control, LatencyTarget) else None


def holds_target(config: ModelConfig) -> bool:
    """Return whether target_p99_us applies: not to sequences, decoupled models and ensembles."""
    return (
        config.target_p99_us > 0
        and config.sequences is None
        and not config.decoupled
        and config.platform != ENSEMBLE_PLATFORM
    )


class WaitingBatcher(Batcher, Protocol):
    """A Batcher whose batches may be sent to instances that still execute another batch."""

    def next_waiting_batch(self, now_ns: int, instances: int) -> Batch | None:
        """Return a batch for a busy instance; `None` if the batch could still grow."""


class FifoBatcher:
    """Triton's default scheduler: one request per execution, in order of arrival."""

    def __init__(self, model_name: str, max_pending: int = 0) -> None:
        self.pending = 0
        self._model_name = model_name
        self._max_pending = max_pending
        self._queue = Fifo()
        self._expiries = Expiries()

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raise Unavailable if the queue is full."""
        if self._max_pending and self.pending >= self._max_pending:
            raise queue_full(entry)
        entry.enqueued_ns = now_ns
        entry.state = QUEUED
        self._queue.append(entry)
        self.pending += 1
        self._expiries.push(entry, self.pending)

    def pending_ahead(self, level: int) -> int:  # noqa: ARG002 (there are no levels)
        """Return how many entries would be executed before a new entry."""
        return self.pending

    def last_entries(self, count: int) -> list[Entry]:
        """Return the last `count` entries of the queue (or fewer), the last first."""
        return list(islice(self._queue.newest(), max(0, count)))

    def requeue(self, entries: Sequence[Entry]) -> None:
        """Put entries back to the front, in this order; the limit does not apply."""
        self._queue.prepend(entries)
        self.pending += len(entries)
        for entry in entries:
            entry.state = QUEUED
            self._expiries.push(entry, self.pending)

    def remove_entry(self, entry: Entry) -> bool:
        """Remove an entry that no instance has; return False if the queue does not have it."""
        if entry.holder is not self._queue:
            return False
        self._queue.discard(entry)
        self.pending -= 1
        return True

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:  # noqa: ARG002 (no batch is formed)
        """Return a batch of the oldest entry; `None` if nothing is queued."""
        entries = self._queue.pop(1)
        if not entries:
            return None
        self.pending -= 1
        return executing_batch(entries, entries[0].valid.batch_size, "single")

    def next_waiting_batch(self, now_ns: int, instances: int) -> Batch | None:
        """Return what next_batch() returns, as a batch of one entry cannot grow."""
        return self.next_batch(now_ns, instances)

    def lone_batch(self, entry: Entry, now_ns: int) -> Batch | None:
        """Return the batch of an entry that arrives alone while an instance is free."""
        entry.enqueued_ns = now_ns
        entry.state = EXECUTING
        return Batch([entry], entry.valid.batch_size, "single")

    def form_batches(self, now_ns: int, instances: int) -> None:
        """Do nothing, as every entry runs alone."""

    def expire_entries(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        """Remove the entries whose deadline has passed; return them with their errors."""
        expired: list[tuple[Entry, NereidError]] = []
        for entry in self._expiries.due(now_ns):
            self.remove_entry(entry)
            expired.append((entry, deadline_passed(self._model_name)))
        return expired

    def closes_ns(self, now_ns: int) -> int | None:  # noqa: ARG002 (nothing is delayed)
        """Return `None`, as no batch is delayed."""
        return None

    def wake_at_ns(self, now_ns: int) -> int | None:  # noqa: ARG002 (nothing is delayed)
        """Return a time not after the next deadline; `None` if no entry has a deadline."""
        return self._expiries.next_ns()
