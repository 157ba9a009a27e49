"""Table that maps a model to the scheduler for its requests, from the schedulers' announcements.

If several live schedulers name a model, the one with the largest (epoch, name) has it, as in
executors. If none names it, any live scheduler gets the request. If the model's scheduler was just
lost, requests wait for a takeover. The module does no I/O.
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
    # Epoch and name; (0, "") in a mesh with one scheduler, which announces nothing.
    rank: tuple[int, str] = (0, "")
    # Models that the scheduler announced last. They are kept for a while after its link broke.
    models: frozenset[str] = field(default_factory=frozenset)

    @property
    def accepts(self) -> bool:
        return self.live and not self.leaving


class RoutingTable(Generic[Key]):
    """Table of schedulers and their models. Keys identify the links, one for each scheduler."""

    def __init__(self) -> None:
        self._schedulers: dict[Key, _Scheduler] = {}
        # Key: a model's name. Value: its scheduler; `None` if requests wait for a takeover.
        self._owners: dict[str, Key | None] = {}
        # Key: a model. Value: its scheduler, which is shutting down.
        self._leaving: dict[str, Key | None] = {}

    def add(self, key: Key) -> None:
        """Add a scheduler's key. The scheduler itself may not be running yet."""
        self._schedulers[key] = _Scheduler()

    def remove(self, key: Key) -> None:
        """Remove a scheduler that no longer exists."""
        del self._schedulers[key]
        self._update()

    def on_up(self, key: Key) -> None:
        """Mark a scheduler as live. Its next announcement replaces all earlier ones."""
        scheduler = self._schedulers[key]
        scheduler.live, scheduler.leaving = True, False
        self._update()

    def on_down(self, key: Key) -> None:
        """Mark a scheduler as lost. Requests to its models wait for a takeover."""
        self._schedulers[key].live = False
        self._update()

    def on_ownership(self, key: Key, owned: Ownership) -> None:
        """Apply a scheduler's announcement of its models."""
        for known in self._schedulers.values():
            if not known.live and known.rank[1] == owned.scheduler:
                # The scheduler has come back under a new address, so forget its models at the old
                # one.
                known.models = frozenset()
        scheduler = self._schedulers[key]
        scheduler.rank = owned.epoch, owned.scheduler
        # A scheduler that shuts down drops models before another scheduler names them. Keep them
        # until then.
        had = scheduler.models if owned.leaving else frozenset[str]()
        scheduler.models = had.union(owned.models)
        scheduler.leaving = owned.leaving
        self._update()

    def forget(self, key: Key) -> None:
        """Forget the models of a lost scheduler, because the time for a takeover has passed."""
        if not self._schedulers[key].live:
            self._schedulers[key].models = frozenset()
            self._update()

    def live(self) -> Iterator[Key]:
        """Yield the keys of live schedulers. Those that are shutting down come last."""
        for leaving in (False, True):
            for key, scheduler in self._schedulers.items():
                if scheduler.live and scheduler.leaving is leaving:
                    yield key

    def only(self) -> Key | None:
        """Return the scheduler if there is only one and it accepts requests; otherwise None."""
        if len(self._schedulers) != 1:
            return None
        [(key, scheduler)] = self._schedulers.items()
        return key if scheduler.accepts else None

    @property
    def is_lone(self) -> bool:
        """True if the mesh has one scheduler, which has no name and announces no models."""
        return [scheduler.rank[1] for scheduler in self._schedulers.values()] == [""]

    def owner(self, model: str) -> Key | None:
        """Return the live scheduler that names this model, or None if there is none."""
        return self._owners.get(model)

    def find(self, model: str) -> Key | None:
        """Return the scheduler for requests to a model; None if the requests have to wait."""
        if model in self._owners:
            return self._owners[model]
        return next((key for key, scheduler in self._schedulers.items() if scheduler.accepts), None)

    def find_leaving(self, model: str) -> Key | None:
        """Return the scheduler for a model's call, if all schedulers are shutting down.

        A scheduler that shuts down still serves calls that its running requests need.
        """
        if any(scheduler.accepts for scheduler in self._schedulers.values()):
            return None
        return self._leaving.get(model)

    def _update(self) -> None:
        owners: dict[str, Key | None] = {}
        leaving: dict[str, Key | None] = {}
        # Later entries replace earlier ones, so the best scheduler comes last.
        by_rank = sorted(self._schedulers.items(), key=lambda item: item[1].rank)
        for key, scheduler in sorted(by_rank, key=lambda item: item[1].accepts):
            owner = key if scheduler.accepts else None
            owners.update(dict.fromkeys(scheduler.models, owner))
            if scheduler.live and scheduler.leaving:
                leaving.update(dict.fromkeys(scheduler.models, key))
        self._owners = owners | _plain_names(owners)
        self._leaving = leaving | _plain_names(leaving)


def _plain_names(owners: dict[str, Key | None]) -> dict[str, Key | None]:
    """Return the schedulers of unambiguous names without a namespace."""
    plain: dict[str, Key | None] = {}
    ambiguous = set(owners)
    for name, owner in owners.items():
        _, separator, short = name.partition(_NAMESPACE_END)
        if separator:
            if short in plain:
                ambiguous.add(short)
            plain[short] = owner
    return {name: owner for name, owner in plain.items() if name not in ambiguous}
