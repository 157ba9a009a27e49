"""Which instances may execute now: those whose resources are free, by priority; pure.

An instance that has work requests its resources, gets all of them at once (a grant), and releases
them when it has executed. Grants go by stride scheduling: an instance's pass grows by its priority
with each execution, and the lowest pass is next, so that priority 2 executes half as often as
priority 1. One that was idle does not catch up. An instance that must wait keeps what it needs from
all behind it, so that none starves; those that need other resources are not held up.

Instances that need the same wait in one queue, and a turn looks at the queues alone that compete
for what has changed, so that its cost grows neither with instances nor with devices. Grants are
made in a turn of their own, when all that happened at a time is known.
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
    """An instance, and what it needs to execute."""

    instance: T
    pools: dict[Pool, int]
    priority: int
    # Equal for instances that need the same.
    queue: _Queue
    # Its executions, weighted by its priority.
    passed: int = 0
    holds: bool = False
    # Its place among equal passes; 0: it does not wait.
    waiting: int = 0
    accept: Callable[[T], bool] | None = None


@dataclass(slots=True, eq=False, order=False)
class _Place(Generic[T]):
    """A place in a queue; void once its claim waits no more, or waits anew."""

    passed: int
    number: int
    claim: _Claim[T]

    def __lt__(self, other: _Place[T]) -> bool:
        return (self.passed, self.number) < (other.passed, other.number)

    @property
    def void(self) -> bool:
        return self.claim.waiting != self.number


class RateLimiter(Generic[T]):
    """The resources of the mesh and who holds them; an instance is any hashable object."""

    def __init__(
        self, resources: Resources, schedule: Callable[[Callable[[], None]], object]
    ) -> None:
        """schedule: has a function called once what happens now is over."""
        self.resources = resources
        self._schedule = schedule
        self._claims: dict[T, _Claim[T]] = {}
        self._used: dict[Pool, int] = {}
        # Those that wait, by what they need.
        self._queues: dict[_Queue, list[_Place[T]]] = {}
        # The queues that compete for a pool.
        self._competing: dict[Pool, dict[_Queue, None]] = {}
        # Since the last turn: queues with new places, and pools of which something was released.
        self._grown: dict[_Queue, None] = {}
        self._released: dict[Pool, None] = {}
        self._number = 0
        # The pass of the last grant.
        self._passed = 0
        self._turn_due = False

    def add_instance(self, instance: T, limit: RateLimit, device: Device) -> None:
        """It may request its resources; `resources.require` has accepted them."""
        pools = pools_of(limit.resources, device)
        claim = _Claim(instance, pools, limit.priority, frozenset(pools.items()))
        self._claims[instance] = claim
        self.resources.add_user(claim.pools)
        # By default there may be more of them now.
        self._released.update(dict.fromkeys(claim.pools))
        self._await_turn()

    def remove_instance(self, instance: T) -> None:
        """It is gone, with all that it holds or waits for."""
        self.release(instance)
        claim = self._claims.pop(instance, None)
        if claim is not None:
            self.resources.remove_user(claim.pools)

    def request(self, instance: T, accept: Callable[[T], bool]) -> None:
        """It may have work: accept is called in a later turn, once it can have all that it needs;
        False: it wants nothing any more. It must call nothing here.
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
        """It executes a batch with what it was granted."""
        claim = self._claims.get(instance)
        if claim is not None:
            claim.passed += claim.priority

    def release(self, instance: T) -> None:
        """It has executed, or does not want its resources any more."""
        claim = self._claims.get(instance)
        if claim is None:
            return
        if claim.waiting:
            claim.waiting = 0
            # Others may have waited for it to be first.
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
        """The instances that hold their resources."""
        return [claim.instance for claim in self._claims.values() if claim.holds]

    def used(self, pool: Pool) -> int:
        """How much of a pool is held."""
        return self._used.get(pool, 0)

    def _await_turn(self) -> None:
        if not self._turn_due and (self._grown or self._released):
            self._turn_due = True
            self._schedule(self._grant)

    def _grant(self) -> None:
        """Grant, in order, what can be granted."""
        self._turn_due = False
        affected = self._affected_queues()
        for key in affected:
            self._prune(key)
        # The first of each queue; one that must wait is followed by all of its queue.
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
        """Those that compete, directly or through others, for what has changed."""
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
        """Drop the void places at the head of a queue, and the queue if it is empty."""
        queue = self._queues.get(key, [])
        while queue and queue[0].void:
            heappop(queue)
        if not queue and self._queues.pop(key, None) is not None:
            for pool, _ in key:
                del self._competing[pool][key]
                if not self._competing[pool]:
                    del self._competing[pool]
