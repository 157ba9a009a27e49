"""Limits the depth of requests that models make, and detects deadlocks between them.

A model that waits for another model's response keeps its instance busy. A request that would close
a circle of waits is refused. A request that follows an identical one waits for the same instance.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nereid.core.errors import InvalidArgument, Unavailable
from nereid_scheduler.core.requests.entry import Batch, Entry, RequestState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nereid.core.wire.messages import InferRequest
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.requests.entry import EntryOwner

MAX_DEPTH: Final = 32
_MIN_SWEEP: Final = 64


class HostedVersion(Protocol):
    """Interface for a model version; `runtime` owns the version's entries."""

    @property
    def runtime(self) -> EntryOwner | None:
        """Queue and batches of the version; `None` until it is loaded."""


class HostedInstance(Protocol):
    """Interface for an instance together with its model version."""

    @property
    def instance(self) -> RemoteInstance:
        """The instance."""

    @property
    def served(self) -> HostedVersion:
        """Model version of the instance."""


class Call(NamedTuple):
    """Request that a model has made, and that an instance's batch waits for."""

    batch: Batch
    entry: Entry


class NestedCalls:
    """Requests that models have made and wait for. placed: maps caller numbers to instances."""

    def __init__(self, placed: Mapping[int, HostedInstance]) -> None:
        self._placed = placed
        self._calls: dict[RemoteInstance, list[Call]] = {}
        self._count = 0
        self._sweep_at = _MIN_SWEEP

    def set_depth(self, request: InferRequest) -> None:
        """Set a request's depth; raise InvalidArgument if models call each other without end.

        A call gets the key of the instance's callers as well, if they have the same. One for copies
        alone is a copy.
        """
        placed = self._placed.get(request.caller)
        if placed is None:
            return
        # The instance may make the request for any of its entries.
        entries = placed.instance.batches.entries()
        request.depth = 1 + max((entry.request.depth for entry in entries), default=-1)
        request.is_shadow = bool(entries) and all(entry.request.is_shadow for entry in entries)
        keys = {entry.request.caller_key for entry in entries}
        if len(keys) == 1:
            request.caller_key = request.caller_key or keys.pop()
        if request.depth > MAX_DEPTH:
            raise InvalidArgument(
                f"more than {MAX_DEPTH} models wait for each other's responses: "
                "do they call each other without end?"
            )

    def add_call(self, request: InferRequest, entry: Entry) -> None:
        """Record a model's accepted request; raise Unavailable if it would cause a deadlock."""
        placed = self._placed.get(request.caller)
        if placed is None or placed.instance.batches.first is None:
            return
        caller, batch = placed.instance, placed.instance.batches.first.batch
        if self._count >= self._sweep_at:
            self._sweep()
        self._calls.setdefault(caller, []).append(Call(batch, entry))
        self._count += 1
        if entry.cache_lookup is not None and entry.state is RequestState.CACHE_LOOKUP:
            # Only after the lookup it is known whether the request must wait for an instance.
            entry.cache_lookup.on_queued = partial(self._check_deadlock, caller, entry)
        self._check_deadlock(caller, entry)

    def _check_deadlock(self, caller: RemoteInstance, entry: Entry) -> None:
        if self._is_deadlock(caller, entry):
            raise Unavailable(
                "every instance of the model waits itself for a response that only one of them "
                "could help to: the request would wait for ever",
                accepted=True,
            )

    def _instances_of(self, model: EntryOwner) -> list[RemoteInstance]:
        return [
            placed.instance
            for placed in self._placed.values()
            if placed.served.runtime is model and placed.instance.stream is not None
        ]

    def _sweep(self) -> None:
        for instance in list(self._calls):
            calls = self._awaited_calls(instance)
            if calls:
                self._calls[instance] = calls
            else:
                del self._calls[instance]
        self._count = sum(map(len, self._calls.values()))
        self._sweep_at = 2 * self._count + _MIN_SWEEP

    def _awaited_calls(self, instance: RemoteInstance) -> list[Call]:
        first = instance.batches.first
        if first is None:
            return []
        return [
            call
            for call in self._calls.get(instance, ())
            if call.batch is first.batch and call.entry.state is not RequestState.RESPONDED
        ]

    def _is_deadlock(self, caller: RemoteInstance, entry: Entry) -> bool:
        if entry.state is RequestState.EXECUTING:
            return False
        awaited = _awaited_entry(entry)
        if awaited.state is RequestState.CACHE_LOOKUP:
            return False
        if awaited.state is not RequestState.EXECUTING and not self._all_wait(entry.owner):
            return False
        calls = {instance: self._awaited_calls(instance) for instance in self._calls}
        blocked = {instance for instance, awaited_calls in calls.items() if awaited_calls}
        while True:
            freed = [
                instance for instance in blocked if not self._depends_on(calls[instance], blocked)
            ]
            if not freed:
                return caller in blocked
            blocked.difference_update(freed)

    def _all_wait(self, model: EntryOwner) -> bool:
        instances = self._instances_of(model)
        return bool(instances) and all(map(self._awaited_calls, instances))

    def _depends_on(self, calls: Iterable[Call], blocked: set[RemoteInstance]) -> bool:
        """Return whether one of these calls can be answered only by blocked instances."""
        for call in calls:
            awaited = _awaited_entry(call.entry)
            if awaited.state is RequestState.CACHE_LOOKUP:
                continue
            instances = self._instances_of(call.entry.owner)
            if awaited.state is RequestState.EXECUTING:
                instances = [
                    instance
                    for instance in instances
                    if instance.batches.first and awaited in instance.batches.first.batch.entries
                ]
            if instances and blocked.issuperset(instances):
                return True
        return False


def _awaited_entry(entry: Entry) -> Entry:
    """Return the entry whose execution this entry waits for: itself, or its flight's leader."""
    return entry if entry.cache_lookup is None else entry.cache_lookup.flight.leader


NO_NESTED_CALLS: Final = NestedCalls({})
