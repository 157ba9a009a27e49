"""Batcher and router of a model version whose instances need resources (--rate-limit).

Idle instances request grants when entries wait. Only a granted instance may get a batch. If there
is none, the instance returns its grant at once, so that it holds no resources in vain.
"""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from nereid_scheduler.batching.sequences.sequence_batcher import SequenceBatcher
from nereid_scheduler.core.instances.router import Router

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Sequence

    from nereid.core.errors import NereidError
    from nereid_scheduler.batching.batcher import Batch, Batcher
    from nereid_scheduler.batching.rate_limiting.rate_limiter import RateLimiter
    from nereid_scheduler.core.requests.entry import Entry

T = TypeVar("T", bound="Hashable")


class RateLimitedRouter(Router[T]):
    """Router whose free instances may get a batch only when they hold a grant."""

    def __init__(self, limiter: RateLimiter[T]) -> None:
        super().__init__()
        self._limiter = limiter
        # Free instances in the order in which they will execute.
        self._granted: dict[T, None] = {}
        self._idle: dict[T, None] = {}

    @property
    def granted(self) -> int:
        """Number of free instances that hold a grant."""
        return len(self._granted)

    @property
    def requested(self) -> int:
        """Number of free instances that wait for a grant."""
        return len(self.free_instances) - len(self._granted) - len(self._idle)

    def request_grants(self, accept: Callable[[], bool], without: Container[Hashable] = ()) -> None:
        """Request grants for idle instances. accept: returns whether a grant is still wanted."""

        def accept_for(instance: T) -> bool:
            accepted = accept()
            (self._granted if accepted else self._idle)[instance] = None
            return accepted

        still_idle = {instance: None for instance in self._idle if instance in without}
        for instance in self._idle:
            if instance not in still_idle:
                self._limiter.request(instance, accept_for)
        self._idle = still_idle

    def first_granted(self) -> T | None:
        """Return the free instance that executes next; `None` if none holds a grant."""
        return next(iter(self._granted), None)

    def return_grants(self) -> list[T]:
        """Give back all grants; return the instances that held one."""
        returned = list(self._granted)
        for instance in returned:
            self._limiter.release(instance)
        self._idle.update(self._granted)
        self._granted.clear()
        return returned

    def add_instance(self, instance: T) -> None:
        """Add a free instance without a grant."""
        super().add_instance(instance)
        self._idle[instance] = None

    def acquire_instance(self) -> T | None:
        """Return the next instance that holds a grant, now busy; `None` if none holds one."""
        instance = self.first_granted()
        if instance is not None:
            self.acquire(instance)
        return instance

    def acquire(self, instance: T) -> None:
        """Make an instance that holds a grant busy."""
        super().acquire(instance)
        del self._granted[instance]
        self._limiter.begin_execution(instance)

    def is_free(self, instance: T) -> bool:
        """Return whether an instance is free and holds a grant."""
        return instance in self._granted

    def remove_instance(self, instance: T) -> bool:
        """Remove an instance and release its grant; return False if it is unknown."""
        if instance in self.free_instances:
            self._granted.pop(instance, None)
            self._idle.pop(instance, None)
            self._limiter.release(instance)
        return super().remove_instance(instance)

    def release_instance(self, instance: T) -> None:
        """Release an executed instance's grant; the instance is free unless it was removed."""
        super().release_instance(instance)
        self._limiter.release(instance)
        if instance in self.free_instances:
            self._idle[instance] = None


class RateLimitedBatcher:
    """Batcher that gives the batches of another batcher to instances that hold a grant."""

    def __init__(
        self, batcher: Batcher, router: RateLimitedRouter[T], on_grant: Callable[[], None]
    ) -> None:
        self._batcher = batcher
        self._router = router
        self._on_grant = on_grant
        # False for sequences, whose entries need the instance that has their slot.
        self._any_instance = not isinstance(batcher, SequenceBatcher)
        # Instances that held a grant without a batch, since the last request for all idle ones.
        self._without_batch: set[Hashable] = set()

    @property
    def pending(self) -> int:
        """Number of entries in the wrapped batcher."""
        return self._batcher.pending

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raise Unavailable if the queue is full."""
        self._batcher.enqueue(entry, now_ns)

    def requeue(self, entries: Sequence[Entry]) -> None:
        """Put entries back to the front, in this order."""
        self._batcher.requeue(entries)

    def remove_entry(self, entry: Entry) -> bool:
        """Remove an entry that no instance has; return False if the batcher does not have it."""
        removed = self._batcher.remove_entry(entry)
        self._return_useless_grants()
        return removed

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:
        """Return a batch for an instance that holds a grant. If none does, request grants."""
        granted = self._router.first_granted()
        if granted is None:
            if self._batcher.pending:
                self._without_batch.clear()
                self._router.request_grants(self._accept_grant)
            self._batcher.form_batches(now_ns, instances)
            return None
        batch = self._batcher.next_batch(now_ns, instances)
        if batch is None:
            self._without_batch.update(self._router.return_grants())
            if self._batcher.pending and not self._any_instance:
                self._router.request_grants(self._accept_grant, self._without_batch)
        elif batch.instance is None:
            batch.instance = granted
        return batch

    def has_grown(self, now_ns: int, instances: int) -> bool:  # noqa: ARG002 (a Batcher)
        """Return False, as an instance needs a grant for each batch."""
        return False

    def form_batches(self, now_ns: int, instances: int) -> None:
        """Form batches ahead of time, and add entries to the last one."""
        self._batcher.form_batches(now_ns, instances)

    def expire_entries(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        """Remove expired entries, and return grants that are not needed any more."""
        expired = self._batcher.expire_entries(now_ns)
        self._return_useless_grants()
        return expired

    def closes_ns(self, now_ns: int) -> int | None:
        """Return when the queue delay of the next batch ends; `None` if no batch is delayed."""
        return self._batcher.closes_ns(now_ns)

    def wake_at_ns(self, now_ns: int) -> int | None:
        """Return the latest time at which the owner must expire entries and ask for batches."""
        return self._batcher.wake_at_ns(now_ns)

    def batch_ended(self, instance: Hashable, batch: Batch, taken_ns: int, now_ns: int) -> None:
        """Do nothing: an instance that waited for requests would keep its grant."""

    def _accept_grant(self) -> bool:
        if self._batcher.pending <= (self._router.granted if self._any_instance else 0):
            return False
        self._on_grant()
        return True

    def _return_useless_grants(self) -> None:
        if not self._batcher.pending:
            self._router.return_grants()
