"""Table of the scheduler that each model's requests go to, from the schedulers' announcements.

A scheduler is live while its link is up. If several live schedulers name a model, the one with the
largest (epoch, name) has it, as at the executors. Requests to a model that none names go to any
live scheduler, which knows what is wrong with the model or where it is. But if the model's
scheduler was lost a short time ago, another one is about to take it over, and until then its
requests wait. Pure.
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
    # The scheduler's epoch and name; (0, "") in a mesh that has one scheduler, which announces
    # nothing.
    rank: tuple[int, str] = (0, "")
    # Models of the scheduler's last announcement; kept for a while after its link broke.
    models: frozenset[str] = field(default_factory=frozenset)

    @property
    def accepts(self) -> bool:
        return self.live and not self.leaving


class RoutingTable(Generic[Key]):
    """Table whose keys stand for links, one for each scheduler."""

    def __init__(self) -> None:
        self._schedulers: dict[Key, _Scheduler] = {}
        # Owner of each model by its name as clients write it; `None` means that requests wait for
        # the scheduler that takes the model over.
        self._owners: dict[str, Key | None] = {}
        # Scheduler that had each model and is shutting down.
        self._leaving: dict[str, Key | None] = {}

    def add(self, key: Key) -> None:
        """Add a scheduler that may exist."""
        self._schedulers[key] = _Scheduler()

    def remove(self, key: Key) -> None:
        """Remove a scheduler that does not exist any more."""
        del self._schedulers[key]
        self._update()

    def on_up(self, key: Key) -> None:
        """Mark a scheduler as live; its announcements replace all earlier ones."""
        scheduler = self._schedulers[key]
        scheduler.live, scheduler.leaving = True, False
        self._update()

    def on_down(self, key: Key) -> None:
        """Mark a scheduler as lost; requests to its models wait for another one to name them."""
        self._schedulers[key].live = False
        self._update()

    def on_ownership(self, key: Key, owned: Ownership) -> None:
        """Apply an announcement of a scheduler."""
        for known in self._schedulers.values():
            if not known.live and known.rank[1] == owned.scheduler:
                # The same scheduler was known under another address.
                known.models = frozenset()
        scheduler = self._schedulers[key]
        scheduler.rank = owned.epoch, owned.scheduler
        # A scheduler that leaves stops naming its models before another one names them.
        had = scheduler.models if owned.leaving else frozenset[str]()
        scheduler.models = had.union(owned.models)
        scheduler.leaving = owned.leaving
        self._update()

    def forget(self, key: Key) -> None:
        """Forget the models of a scheduler that has been down too long for a takeover."""
        if not self._schedulers[key].live:
            self._schedulers[key].models = frozenset()
            self._update()

    def live(self) -> Iterator[Key]:
        """Yield the keys of live schedulers in the order of addition; leaving ones come last."""
        for leaving in (False, True):
            for key, scheduler in self._schedulers.items():
                if scheduler.live and scheduler.leaving is leaving:
                    yield key

    def only(self) -> Key | None:
        """Return the scheduler that all requests go to, whatever their model.

        That is the only scheduler there is, if it accepts requests; otherwise None.
        """
        if len(self._schedulers) != 1:
            return None
        [(key, scheduler)] = self._schedulers.items()
        return key if scheduler.accepts else None

    @property
    def is_lone(self) -> bool:
        """True if the mesh has one scheduler, which has no name and announces no models."""
        return [scheduler.rank[1] for scheduler in self._schedulers.values()] == [""]

    def owner(self, model: str) -> Key | None:
        """Return the live scheduler that names this model, or None."""
        return self._owners.get(model)

    def find(self, model: str) -> Key | None:
        """Return the scheduler for the model's requests; None if they have to wait."""
        if model in self._owners:
            return self._owners[model]
        return next((key for key, scheduler in self._schedulers.items() if scheduler.accepts), None)

    def find_leaving(self, model: str) -> Key | None:
        """Return the scheduler for requests of models if only schedulers that shut down are live.

        A leaving scheduler that has the model serves them, since its end waits for the requests
        during which models make them.
        """
        if any(scheduler.accepts for scheduler in self._schedulers.values()):
            return None
        return self._leaving.get(model)

    def _update(self) -> None:
        owners: dict[str, Key | None] = {}
        leaving: dict[str, Key | None] = {}
        # The best scheduler comes last, and replaces the others.
        by_rank = sorted(self._schedulers.items(), key=lambda item: item[1].rank)
        for key, scheduler in sorted(by_rank, key=lambda item: item[1].accepts):
            owner = key if scheduler.accepts else None
            owners.update(dict.fromkeys(scheduler.models, owner))
            if scheduler.live and scheduler.leaving:
                leaving.update(dict.fromkeys(scheduler.models, key))
        self._owners = owners | _plain_names(owners)
        self._leaving = leaving | _plain_names(leaving)


def _plain_names(owners: dict[str, Key | None]) -> dict[str, Key | None]:
    """Return the owners by names without namespaces, if unique and no model's own name."""
    plain: dict[str, Key | None] = {}
    ambiguous = set(owners)
    for name, owner in owners.items():
        _, separator, short = name.partition(_NAMESPACE_END)
        if separator:
            if short in plain:
                ambiguous.add(short)
            plain[short] = owner
    return {name: owner for name, owner in plain.items() if name not in ambiguous}
