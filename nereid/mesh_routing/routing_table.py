"""Which scheduler a model's requests go to, from what the schedulers announce.

A scheduler is live while its link is up. Of live ones that name a model, the one with the largest
(epoch, name) has it, as at the executors. A model that none names goes to any live one, which knows
what is wrong with it or where it is; but not if its scheduler was lost a short time ago: another
one is about to take it over, and until then its requests wait. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from nereid.core.wire.messages import Ownership

Key = TypeVar("Key", bound="Hashable")

_NAMESPACE_END = "::"


@dataclass(slots=True, eq=False)
class _Scheduler:
    live: bool = False
    leaving: bool = False
    # Its name and epoch; () in a mesh that has one scheduler, which announces nothing.
    rank: tuple[int, str] = (0, "")
    # Of its last announcement; kept for a while after its link broke.
    models: frozenset[str] = field(default_factory=frozenset)

    @property
    def accepts(self) -> bool:
        return self.live and not self.leaving


class RoutingTable(Generic[Key]):
    """Keys stand for links, one for each scheduler."""

    def __init__(self) -> None:
        self._schedulers: dict[Key, _Scheduler] = {}
        # By models' names as clients say them: who has it; None: wait for who takes it over.
        self._owners: dict[str, Key | None] = {}
        # Who had it, and shuts down.
        self._leaving: dict[str, Key | None] = {}

    def add(self, key: Key) -> None:
        """A scheduler may be there."""
        self._schedulers[key] = _Scheduler()

    def remove(self, key: Key) -> None:
        """It is not there any more."""
        del self._schedulers[key]
        self._update()

    def on_up(self, key: Key) -> None:
        """Its link is up. What it announces replaces what it had announced before."""
        scheduler = self._schedulers[key]
        scheduler.live, scheduler.leaving = True, False
        self._update()

    def on_down(self, key: Key) -> None:
        """Its link broke. Requests to its models wait for another one to name them."""
        self._schedulers[key].live = False
        self._update()

    def on_ownership(self, key: Key, owned: Ownership) -> None:
        """What it announced."""
        for each in self._schedulers.values():
            if not each.live and each.rank[1] == owned.scheduler:
                # It was there under another address.
                each.models = frozenset()
        scheduler = self._schedulers[key]
        scheduler.rank = owned.epoch, owned.scheduler
        # One that leaves names its models no more, before another one does.
        had = scheduler.models if owned.leaving else frozenset[str]()
        scheduler.models = had.union(owned.models)
        scheduler.leaving = owned.leaving
        self._update()

    def forget(self, key: Key) -> None:
        """It has been down for so long that nobody takes its models over any more."""
        if not self._schedulers[key].live:
            self._schedulers[key].models = frozenset()
            self._update()

    def live(self) -> Iterator[Key]:
        """Those whose links are up, in the order in which they were added; leaving ones last."""
        for leaving in (False, True):
            for key, each in self._schedulers.items():
                if each.live and each.leaving is leaving:
                    yield key

    def only(self) -> Key | None:
        """The scheduler that each request goes to, whatever its model: the only one there is, if it
        accepts requests.
        """
        if len(self._schedulers) != 1:
            return None
        [(key, scheduler)] = self._schedulers.items()
        return key if scheduler.accepts else None

    @property
    def is_lone(self) -> bool:
        """Whether the mesh has one scheduler, which has no name and announces no models."""
        return [each.rank[1] for each in self._schedulers.values()] == [""]

    def owner(self, model: str) -> Key | None:
        """The live scheduler that names this model."""
        return self._owners.get(model)

    def find(self, model: str) -> Key | None:
        """Where the model's requests go; None: they wait."""
        if model in self._owners:
            return self._owners[model]
        return next((key for key, each in self._schedulers.items() if each.accepts), None)

    def find_leaving(self, model: str) -> Key | None:
        """Where requests go that models make, if only schedulers that shut down are live: one that
        has the model serves them, since its end waits for the requests that they are for.
        """
        if any(each.accepts for each in self._schedulers.values()):
            return None
        return self._leaving.get(model)

    def _update(self) -> None:
        owners: dict[str, Key | None] = {}
        leaving: dict[str, Key | None] = {}
        # The best comes last, and replaces the others.
        by_rank = sorted(self._schedulers.items(), key=lambda each: each[1].rank)
        for key, scheduler in sorted(by_rank, key=lambda each: each[1].accepts):
            owner = key if scheduler.accepts else None
            owners.update(dict.fromkeys(scheduler.models, owner))
            if scheduler.live and scheduler.leaving:
                leaving.update(dict.fromkeys(scheduler.models, key))
        self._owners = owners | _plain_names(owners)
        self._leaving = leaving | _plain_names(leaving)


def _plain_names(owners: dict[str, Key | None]) -> dict[str, Key | None]:
    """The same without namespaces, as far as that is unique and no model's own name."""
    plain: dict[str, Key | None] = {}
    ambiguous = set(owners)
    for name, owner in owners.items():
        _, separator, short = name.partition(_NAMESPACE_END)
        if separator:
            if short in plain:
                ambiguous.add(short)
            plain[short] = owner
    return {name: owner for name, owner in plain.items() if name not in ambiguous}
