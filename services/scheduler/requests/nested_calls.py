"""Requests that models make themselves: whose they are, how deep they go, and whether they can end.

A model that waits for another model's response keeps its instance busy. Where instances wait for
each other in a ring, nobody would ever answer: the request that would close such a ring is refused.
One that waits for the answer to another like it (see response_cache) waits for who has that one.
Looks at nothing but requests that say who asks. Knows no stream.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument, Unavailable
from nereid.services.scheduler.models.decoupled_version import DecoupledVersion
from nereid.services.scheduler.requests.entry import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nereid.core.messages import InferRequest
    from nereid.services.scheduler.executors.instance import Instance
    from nereid.services.scheduler.executors.sessions import Placed
    from nereid.services.scheduler.requests.entry import Batch, Entry

MOST_DEPTH: Final = 32
_FEW: Final = 64


class Child:
    """A request that an instance's batch waits for."""

    __slots__ = ("batch", "entry", "model")

    def __init__(self, batch: Batch, entry: Entry, model: object) -> None:
        self.batch = batch
        self.entry = entry
        self.model = model


class Lineage:
    """Knows which instances wait for which requests. placed: all instances that there are."""

    def __init__(self, placed: Mapping[int, Placed]) -> None:
        self._placed = placed
        self._children: dict[Instance, list[Child]] = {}
        self._count = 0
        self._sweep_at = _FEW

    def adopt(self, request: InferRequest) -> None:
        """Count how deep a request is.

        Raises:
            InvalidArgument: models call each other without end.
        """
        placed = self._placed.get(request.caller)
        if placed is None:
            return
        caller, model = placed.instance, placed.served.runtime
        entries = caller.running.batch.entries if caller.running is not None else []
        if isinstance(model, DecoupledVersion):
            # Any of them may be the one, also when its batch is executed.
            entries = model.open_at(caller)
        request.depth = 1 + max((entry.request.depth for entry in entries), default=-1)
        if request.depth > MOST_DEPTH:
            raise InvalidArgument(
                f"more than {MOST_DEPTH} models wait for each other's responses: "
                "do they call each other without end?"
            )

    def note(self, request: InferRequest, model: object, entry: Entry) -> None:
        """The request is accepted.

        Raises:
            Unavailable: it would wait for ever.
        """
        caller = self._instance_of(request.caller)
        if caller is None or caller.running is None:
            return
        if self._count >= self._sweep_at:
            self._sweep()
        self._children.setdefault(caller, []).append(Child(caller.running.batch, entry, model))
        self._count += 1
        if entry.passage is not None and entry.state is State.WAITING:
            # Whether it has to wait for an instance is known when the cache has answered.
            entry.passage.on_queued = partial(self._check, caller, model, entry)
        self._check(caller, model, entry)

    def _check(self, caller: Instance, model: object, entry: Entry) -> None:
        if self._is_stuck(caller, model, entry):
            raise Unavailable(
                "every instance of the model waits itself for a response that only one of them "
                "could help to: the request would wait for ever",
                accepted=True,
            )

    def _instance_of(self, number: int) -> Instance | None:
        placed = self._placed.get(number)
        return None if placed is None else placed.instance

    def _instances_of(self, model: object) -> list[Instance]:
        """Those that are ready."""
        return [
            each.instance
            for each in self._placed.values()
            if each.served.runtime is model and each.instance.stream is not None
        ]

    def _sweep(self) -> None:
        for instance in list(self._children):
            children = [*self._waiting(instance)]
            if children:
                self._children[instance] = children
            else:
                del self._children[instance]
        self._count = sum(map(len, self._children.values()))
        self._sweep_at = 2 * self._count + _FEW

    def _waiting(self, instance: Instance) -> Iterable[Child]:
        """What the batch that it executes now still waits for."""
        running = instance.running
        if running is None:
            return ()
        return (
            child
            for child in self._children.get(instance, ())
            if child.batch is running.batch and child.entry.state is not State.RESPONDED
        )

    def _is_stuck(self, caller: Instance, model: object, entry: Entry) -> bool:
        if entry.state is State.EXECUTING:
            return False
        awaited = _awaited(entry)
        if awaited.state is State.WAITING:
            return False
        if awaited.state is not State.EXECUTING and not self._all_wait(model):
            return False
        waiting = {each: [*self._waiting(each)] for each in self._children}
        stuck = {instance for instance, children in waiting.items() if children}
        while True:
            freed = [each for each in stuck if not self._holds(waiting[each], stuck)]
            if not freed:
                return caller in stuck
            stuck.difference_update(freed)

    def _all_wait(self, model: object) -> bool:
        instances = [*self._instances_of(model)]
        return bool(instances) and all(any(self._waiting(each)) for each in instances)

    def _holds(self, children: Iterable[Child], stuck: set[Instance]) -> bool:
        """Whether one of these requests can only be answered by who is stuck."""
        for child in children:
            awaited = _awaited(child.entry)
            if awaited.state is State.WAITING:
                continue
            instances = [*self._instances_of(child.model)]
            if awaited.state is State.EXECUTING:
                instances = [
                    each
                    for each in instances
                    if each.running is not None and awaited in each.running.batch.entries
                ]
            if instances and stuck.issuperset(instances):
                return True
        return False


def _awaited(entry: Entry) -> Entry:
    """The entry whose execution this one waits for: itself, or the one that it has joined."""
    return entry if entry.passage is None else entry.passage.flight.leader
