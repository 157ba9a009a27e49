"""A model version's batcher and router where instances need resources to execute (--rate-limit).

An instance may have a batch only while it holds a grant. A free instance requests one when entries
wait; one whose grant finds no batch gives it back at once, so that nothing is held for entries that
may still come. Everything else is as without resources.
"""

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
    """A Router whose free instances may have a batch once they hold a grant."""

    def __init__(self, limiter: RateLimiter[T]) -> None:
        super().__init__()
        self._limiter = limiter
        # Free instances that hold their resources, the next to execute first.
        self._granted: dict[T, None] = {}
        # Free instances that have not requested one.
        self._idle: dict[T, None] = {}

    @property
    def granted(self) -> int:
        """How many free instances hold a grant."""
        return len(self._granted)

    @property
    def requested(self) -> int:
        """How many free instances wait for a grant."""
        return len(self.free_instances) - len(self._granted) - len(self._idle)

    def request_grants(self, accept: Callable[[], bool], without: Container[Hashable] = ()) -> None:
        """For all free instances but those; accept is called for each once it can have one."""

        def accept_for(instance: T) -> bool:
            accepted = accept()
            (self._granted if accepted else self._idle)[instance] = None
            return accepted

        left = {instance: None for instance in self._idle if instance in without}
        for instance in self._idle:
            if instance not in left:
                self._limiter.request(instance, accept_for)
        self._idle = left

    def first_granted(self) -> T | None:
        """The next free instance to execute; None: none holds a grant."""
        return next(iter(self._granted), None)

    def return_grants(self) -> list[T]:
        """There is nothing to execute for the instances that hold a grant, which are returned."""
        returned = list(self._granted)
        for instance in returned:
            self._limiter.release(instance)
        self._idle.update(self._granted)
        self._granted.clear()
        return returned

    def add_instance(self, instance: T) -> None:
        super().add_instance(instance)
        self._idle[instance] = None

    def acquire_instance(self) -> T | None:
        instance = self.first_granted()
        if instance is not None:
            self.acquire(instance)
        return instance

    def acquire(self, instance: T) -> None:
        super().acquire(instance)
        del self._granted[instance]
        self._limiter.begin_execution(instance)

    def is_free(self, instance: T) -> bool:
        return instance in self._granted

    def remove_instance(self, instance: T) -> bool:
        if instance in self.free_instances:
            self._granted.pop(instance, None)
            self._idle.pop(instance, None)
            self._limiter.release(instance)
        return super().remove_instance(instance)

    def release_instance(self, instance: T) -> None:
        super().release_instance(instance)
        self._limiter.release(instance)
        if instance in self.free_instances:
            self._idle[instance] = None


class RateLimitedBatcher:
    """A Batcher that gives the batches of another one to instances that hold a grant."""

    def __init__(
        self, batcher: Batcher, router: RateLimitedRouter[T], on_grant: Callable[[], None]
    ) -> None:
        """on_grant: has the owner ask for batches."""
        self._batcher = batcher
        self._router = router
        self._on_grant = on_grant
        # What waits may be for one instance alone.
        self._any_instance = not isinstance(batcher, SequenceBatcher)
        # Instances that held a grant and found no batch, since all free ones requested one.
        self._without_batch: set[Hashable] = set()

    @property
    def pending(self) -> int:
        return self._batcher.pending

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        self._batcher.enqueue(entry, now_ns)

    def requeue(self, entries: Sequence[Entry]) -> None:
        self._batcher.requeue(entries)

    def remove_entry(self, entry: Entry) -> bool:
        removed = self._batcher.remove_entry(entry)
        self._return_useless_grants()
        return removed

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:
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

    def lone_batch(self, entry: Entry, now_ns: int) -> Batch | None:  # noqa: ARG002 (grants come first)
        return None

    def form_batches(self, now_ns: int, instances: int) -> None:
        self._batcher.form_batches(now_ns, instances)

    def expire_entries(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        expired = self._batcher.expire_entries(now_ns)
        self._return_useless_grants()
        return expired

    def closes_ns(self, now_ns: int) -> int | None:
        return self._batcher.closes_ns(now_ns)

    def wake_at_ns(self, now_ns: int) -> int | None:
        return self._batcher.wake_at_ns(now_ns)

    def _accept_grant(self) -> bool:
        if self._batcher.pending <= (self._router.granted if self._any_instance else 0):
            return False
        self._on_grant()
        return True

    def _return_useless_grants(self) -> None:
        if not self._batcher.pending:
            self._router.return_grants()
