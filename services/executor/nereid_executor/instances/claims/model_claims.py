"""Claims of sessions on models: a model's instances serve one session at a time.

If two schedulers both believe that they own a model, they never share its instances on this
executor. The module does no I/O.

    state   event                        next                       granted
    free    claim by A                   held by A                  that claim
    held    claim by A                   held by A                  that claim
    held    claim by B                   held by A, B waits         -
    held    A's last instance released   free, or held by the best  all claims of the best
    any     a waiting session ends       its claims are dropped     -
    held    A's holds expire             as with its last release   all claims of the best

The best of the waiting sessions is the one with the largest rank: epoch, then name. The end of a
session does not release its instances. They are released one by one when they have finished what
they execute. expire() releases those that take too long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable


class Rank(NamedTuple):
    """Precedence of a scheduler that waits for a model. The largest rank comes first."""

    epoch: int
    scheduler: str


class Grant(NamedTuple):
    """Permission for a waiting session to have an instance now."""

    session: Hashable
    instance: int


@dataclass(slots=True)
class _Waiting:
    rank: Rank
    instances: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Model:
    holder: Hashable
    instances: set[int] = field(default_factory=set)
    waiting: dict[Hashable, _Waiting] = field(default_factory=dict)


class ModelClaims:
    """The claims on the models of one executor. Each session numbers its own instances."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}

    def holder(self, model: str) -> Hashable | None:
        """Return the session that has instances of a model, or `None`."""
        held = self._models.get(model)
        return None if held is None else held.holder

    def claim(self, model: str, session: Hashable, instance: int, rank: Rank) -> bool:
        """Claim an instance for a session; return False if the session has to wait for a Grant."""
        held = self._models.setdefault(model, _Model(session))
        if held.holder == session:
            held.instances.add(instance)
            return True
        waiting = held.waiting.setdefault(session, _Waiting(rank))
        # The session's latest command has its current rank.
        waiting.rank = rank
        waiting.instances.append(instance)
        return False

    def release(self, model: str, session: Hashable, instance: int) -> list[Grant]:
        """Release an instance that a session has or waits for. Ignore an unknown instance."""
        held = self._models.get(model)
        if held is None:
            return []
        if held.holder == session:
            held.instances.discard(instance)
            return self._pass_on(model, held)
        waiting = held.waiting.get(session)
        if waiting is not None and instance in waiting.instances:
            waiting.instances.remove(instance)
            if not waiting.instances:
                del held.waiting[session]
        return []

    def end_waiting(self, session: Hashable) -> None:
        """Drop the claims of an ended session that still wait for instances."""
        for held in self._models.values():
            held.waiting.pop(session, None)

    def expire(self, session: Hashable) -> list[Grant]:
        """Release all instances of an ended session, even if they still execute."""
        grants: list[Grant] = []
        for model, held in list(self._models.items()):
            if held.holder == session:
                held.instances.clear()
                grants += self._pass_on(model, held)
        return grants

    def _pass_on(self, model: str, held: _Model) -> list[Grant]:
        if held.instances:
            return []
        if not held.waiting:
            del self._models[model]
            return []
        best = max(held.waiting, key=lambda session: held.waiting[session].rank)
        instances = held.waiting.pop(best).instances
        held.holder = best
        held.instances.update(instances)
        return [Grant(best, instance) for instance in instances]
