"""Decides which instances may execute now, by free resources and priority.

Stride scheduling: each execution adds the instance's priority to its *pass*, and the lowest pass is
next. A waiting instance reserves its pools, so it never starves. A turn looks only at queues that
compete for a changed pool, so its cost does not grow with the number of instances.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Generic, TypeVar

from nereid_scheduler.core.resources import Pool, Resources, pools_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from nereid.model_config import RateLimit
    from nereid_scheduler.core.resources import Device

T = TypeVar("T", bound="Hashable")
_Queue = frozenset[tuple[Pool, int]]


@dataclass(slots=True, eq=False)
class _Claim(Generic[T]):
    instance: T
    pools: dict[Pool, int]
    priority: int
    # Key of the queue of all instances that need the same resources.
    queue: _Queue
    # Sum of the instance's priority over all its executions.
    passed: int = 0
    holds: bool = False
    # Orders instances with equal passes; 0 if the instance does not wait.
    waiting: int = 0
    accept: Callable[[T], bool] | None = None


@dataclass(slots=True, eq=False, order=False)
class _Place(Generic[T]):
    """Place of a claim in a queue; void if the claim waits elsewhere or not at all."""

    passed: int
    number: int
    claim: _Claim[T]

    def __lt__(self, other: _Place[T]) -> bool:
        return (self.passed, self.number) < (other.passed, other.number)

    @property
    def void(self) -> bool:
        return self.claim.waiting != self.number


class RateLimiter(Generic[T]):
    """Resources of the mesh, and which instances hold them. An instance is any hashable object."""

    def __init__(
        self, resources: Resources, schedule: Callable[[Callable[[], None]], object]
    ) -> None:
        """schedule: calls a function once, after the current events have been handled."""
        self.resources = resources
        self._schedule = schedule
        self._claims: dict[T, _Claim[T]] = {}
        self._used: dict[Pool, int] = {}
        # Key: a queue's key. Value: heap of the places of waiting claims.
        self._queues: dict[_Queue, list[_Place[T]]] = {}
        # Key: a pool. Value: keys of the queues that compete for it.
        self._competing: dict[Pool, dict[_Queue, None]] = {}
        # Since the last turn: queues with new places, and pools of which something was released.
        self._grown: dict[_Queue, None] = {}
        self._released: dict[Pool, None] = {}
        self._number = 0
        self._passed = 0
        self._turn_due = False

    def add_instance(self, instance: T, limit: RateLimit, device: Device) -> None:
        """Add an instance whose needs `resources.require` has accepted."""
        pools = pools_of(limit.resources, device)
        claim = _Claim(instance, pools, limit.priority, frozenset(pools.items()))
        self._claims[instance] = claim
        self.resources.add_user(claim.pools)
        # The instance may have enlarged pools without a configured limit.
        self._released.update(dict.fromkeys(claim.pools))
        self._await_turn()

    def remove_instance(self, instance: T) -> None:
        """Remove an instance; it releases its resources and no longer waits."""
        self.release(instance)
        claim = self._claims.pop(instance, None)
        if claim is not None:
            self.resources.remove_user(claim.pools)

    def request(self, instance: T, accept: Callable[[T], bool]) -> None:
        """Let an instance wait for its resources.

        accept: called when the instance can have them; returns False if it no longer wants them. It
        must not call methods of this object.
        """
        claim = self._claims.get(instance)
        if claim is None or claim.holds or claim.waiting:
            return
        claim.passed = max(claim.passed, self._passed)
        claim.accept = accept
        self._number += 1
        claim.waiting = self._number
        queue = self._queues.get(claim.queue)
        if queue is None:
            queue = self._queues[claim.queue] = []
            for pool in claim.pools:
                self._competing.setdefault(pool, {})[claim.queue] = None
        heappush(queue, _Place(claim.passed, self._number, claim))
        self._grown[claim.queue] = None
        self._await_turn()

    def begin_execution(self, instance: T) -> None:
        """Add an instance's priority to its pass, as it executes a batch."""
        claim = self._claims.get(instance)
        if claim is not None:
            claim.passed += claim.priority

    def release(self, instance: T) -> None:
        """End an instance's grant or wait, because it has executed or has nothing to execute."""
        claim = self._claims.get(instance)
        if claim is None:
            return
        if claim.waiting:
            claim.waiting = 0
            # While this instance waited, it may have kept others behind it from these pools.
            self._released.update(dict.fromkeys(claim.pools))
        if claim.holds:
            claim.holds = False
            for pool, count in claim.pools.items():
                self._released[pool] = None
                self._used[pool] -= count
                if not self._used[pool]:
                    del self._used[pool]
        self._await_turn()

    def holders(self) -> Collection[T]:
        """Return the instances that hold their resources."""
        return [claim.instance for claim in self._claims.values() if claim.holds]

    def used(self, pool: Pool) -> int:
        """Return how much of a pool is in use."""
        return self._used.get(pool, 0)

    def _await_turn(self) -> None:
        if not self._turn_due and (self._grown or self._released):
            self._turn_due = True
            self._schedule(self._grant)

    def _grant(self) -> None:
        """Give all grants that are possible now, in the order of passes."""
        self._turn_due = False
        affected = self._affected_queues()
        for key in affected:
            self._prune(key)
        # If the first claim in a queue must wait, all claims behind it must wait as well.
        heads = [(self._queues[key][0], key) for key in affected if key in self._queues]
        heapify(heads)
        reserved: set[Pool] = set()
        while heads:
            place, key = heappop(heads)
            claim = place.claim
            if not self._is_free(claim.pools, reserved):
                reserved.update(claim.pools)
                continue
            heappop(self._queues[key])
            claim.waiting = 0
            if claim.accept is not None and claim.accept(claim.instance):
                self._hold(claim)
            self._prune(key)
            if key in self._queues:
                heappush(heads, (self._queues[key][0], key))

    def _affected_queues(self) -> dict[_Queue, None]:
        """Return the queues that compete for a changed pool, directly or through other queues."""
        affected: dict[_Queue, None] = {}
        seen: set[Pool] = set()
        pools = list(self._released)
        queues = list(self._grown)
        self._released.clear()
        self._grown.clear()
        while pools or queues:
            if queues:
                key = queues.pop()
                if key not in affected:
                    affected[key] = None
                    pools += [pool for pool, _ in key]
            else:
                pool = pools.pop()
                if pool not in seen:
                    seen.add(pool)
                    queues += self._competing.get(pool, ())
        return affected

    def _is_free(self, pools: dict[Pool, int], reserved: set[Pool]) -> bool:
        return all(
            pool not in reserved and self.used(pool) + count <= self.resources.capacity(pool)
            for pool, count in pools.items()
        )

    def _hold(self, claim: _Claim[T]) -> None:
        claim.holds = True
        self._passed = max(self._passed, claim.passed)
        for pool, count in claim.pools.items():
            self._used[pool] = self.used(pool) + count

    def _prune(self, key: _Queue) -> None:
        """Remove the void places at the head of a queue, and an empty queue."""
        queue = self._queues.get(key, [])
        while queue and queue[0].void:
            heappop(queue)
        if not queue and self._queues.pop(key, None) is not None:
            for pool, _ in key:
                del self._competing[pool][key]
                if not self._competing[pool]:
                    del self._competing[pool]
