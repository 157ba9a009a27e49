"""Moves models among schedulers: serves those that this one owns, hands over the others."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nereid_scheduler.control.rules import EXPLICIT
from nereid_scheduler.control.shards.members.membership import Peer
from nereid_scheduler.core.models.dependencies import is_ensemble, step_models
from nereid_scheduler.core.models.desired_models import Reason
from nereid_scheduler.core.models.found_model import FoundModel
from nereid_scheduler.core.models.load_order import in_load_order, refuse_cycles
from nereid_scheduler.core.models.overrides import parse_override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nereid.config.recovery import RecoveryTimes
    from nereid_scheduler.control.repository.repositories import Repositories
    from nereid_scheduler.control.shards.members.membership import Membership
    from nereid_scheduler.control.shards.members.ownership import OwnedModels
    from nereid_scheduler.control.state.model_records import ModelRecords
    from nereid_scheduler.core.models.desired_models import DesiredModels
    from nereid_scheduler.core.models.overrides import Override
    from nereid_scheduler.placement.loads.loader import Loader
    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedModel


class ModelMoves:
    """The models of one of several schedulers. It is a ModelOwners and shard.ShardModels."""

    def __init__(  # noqa: PLR0913, PLR0917 (one source of models each)
        self,
        owned: OwnedModels,
        membership: Membership,
        repositories: Repositories,
        catalogue: Catalogue,
        mode: str,
        loader: Loader,
        desired: DesiredModels,
        on_regrouped: Callable[[], None],
        times: RecoveryTimes,
        records: ModelRecords,
    ) -> None:
        """Create the moves. records: the clients' loads and unloads, if the state has them."""
        self._owned = owned
        self._membership = membership
        self._repositories = repositories
        self._catalogue = catalogue
        self._mode = mode
        self._loader = loader
        self._desired = desired
        self._on_regrouped = on_regrouped
        self._times = times
        self._records = records
        self._loading: set[str] = set()
        # Models of lost members that their new owners have not announced yet.
        self._unclaimed: set[str] = set()
        self._found: dict[str, FoundModel] = {}

    async def scan(self) -> None:
        """Read the repositories; raise OSError if that fails."""
        found = await asyncio.to_thread(self._repositories.scan)
        self._found = {model.name: model for model in found}
        self.update_groups()

    def _expected_models(self) -> set[str]:
        """Return the models that some member must have, or will soon take over."""
        expected = self._unclaimed.union(*self._membership.lost_models.values())
        if self._mode != EXPLICIT:
            found = self._found.values()
            expected.update(model.name for model in found if model.exists and model.error is None)
        return expected

    def owner(self, plain_name: str) -> str | None:
        """Return the owner of the model with this plain name, or `None` if there is no member."""
        return self._owned.owner(self._names(plain_name)[0])

    def _names(self, plain_name: str) -> list[str]:
        """Return the qualified names that a plain name may mean, or else the plain name itself.

        All of these models have one owner.
        """
        if not self._repositories.namespacing:
            return [plain_name]
        peers = self._membership.peers.values()
        known = self._found.keys() | self._catalogue.qualified_names(plain_name)
        names = sorted(known.union(*(peer.models for peer in peers)))
        return [name for name in names if name.endswith(f"::{plain_name}")] or [plain_name]

    def plain_name(self, name: str) -> str:
        """Return the name by which clients know a model."""
        return self._repositories.plain_name(name)

    def _holder(self, plain_name: str) -> str | None:
        holders = map(self._membership.holder, self._names(plain_name))
        return next((holder for holder in holders if holder is not None), None)

    def has_moved(self, plain_name: str) -> bool:
        """Return whether a model that is not served here is, or will be, at another scheduler."""
        names = self._names(plain_name)
        lost_models = self._membership.lost_models.values()
        lost = any(not models.isdisjoint(names) for models in lost_models)
        held = lost or self._holder(plain_name) is not None
        here = any(self._catalogue.model(name) is not None for name in names)
        if self.owner(plain_name) == self._membership.name:
            return held and not here
        return held or here or not self._expected_models().isdisjoint(names)

    def location(self, plain_name: str) -> str | None:
        """Return the member to call about a model: another one that still has it, or its owner."""
        owner = self.owner(plain_name)
        holder = self._holder(plain_name)
        has_it = owner in (self._membership.name, holder)
        return owner if has_it or holder is None else holder

    def is_elsewhere(self, plain_name: str) -> bool:
        """Return whether another member has a model."""
        return self._holder(plain_name) is not None

    def all_expected_served(self) -> bool:
        """Return whether every model that should be served is served or being loaded somewhere."""
        peers = self._membership.peers.values()
        return self._expected_models() <= self.served().models.union(
            *(peer.models for peer in peers)
        )

    async def learn_model(self, plain_name: str, override: Override | None) -> None:
        """Read a model that will be loaded, or raise NereidError or OSError."""
        if self._mode != EXPLICIT:
            return
        found = await asyncio.to_thread(self._find, plain_name, override)
        pending = found
        while pending:
            self._found.update((model.name, model) for model in pending)
            steps = {step for model in pending for step in step_models(model.draft)}
            new = sorted(steps - self._found.keys())
            pending = await asyncio.to_thread(self._find_qualified, new)
        self._regroup()

    def _find(self, plain_name: str, override: Override | None) -> list[FoundModel]:
        names = self._repositories.qualified_names(plain_name, override)
        if override is None:
            return self._find_qualified(names)
        # Ignore the override's files here: the load itself writes them.
        draft = parse_override(override.config)
        namespaces = [name.removesuffix(plain_name).removesuffix("::") for name in names]
        return [
            FoundModel(name, draft=draft, namespace=namespace)
            for name, namespace in zip(names, namespaces, strict=True)
        ]

    def _find_qualified(self, names: Iterable[str]) -> list[FoundModel]:
        return [found for name in names if (found := self._repositories.find(name)) is not None]

    @contextmanager
    def loading(self, plain_name: str) -> Iterator[None]:
        """Tell peers how a model is composed while a load request for the model lasts.

        For the load to succeed, peers must hand over the models of the steps.
        """
        names = {model.name for model in self._found.values() if model.plain_name == plain_name}
        self._loading |= names
        self._on_regrouped()
        try:
            yield
        finally:
            self._loading -= names
            for name in names:
                if self._catalogue.model(name) is None and not self._found[name].exists:
                    del self._found[name]
            self._regroup()

    def _regroup(self) -> None:
        if self.update_groups():
            self._on_regrouped()

    def select(self, found: list[FoundModel]) -> list[FoundModel]:
        """Return those of the found models that this scheduler owns."""
        if self._mode != EXPLICIT:
            self._found = {}
        self._found.update((model.name, model) for model in found)
        self._regroup()
        owned = [model for model in found if self._owned.owns(model.name)]
        self._note_moves(model.name for model in owned if self._membership.holder(model.name))
        return owned

    def owns(self, name: str) -> bool:
        """Return whether this scheduler owns a model."""
        return self._owned.owns(name)

    def move_models(self, lost_models: frozenset[str], leaving: frozenset[str]) -> None:
        """Ask for loads of the models that this scheduler owns now; hand over the others."""
        owned = self._owned
        self._desired.end_moves(lost_models)
        moved = [model for model in self._catalogue.models() if not owned.owns(model.name)]
        held = {name for peer in self._membership.peers.values() for name in peer.models}
        self._note_moves({model.name for model in moved} | {*filter(owned.owns, held | leaving)})
        for model in moved:
            self._desired.add(model.name, Reason.MOVED)
        if self._mode == EXPLICIT:
            peers = self._membership.peers.values()
            named = lost_models.union(*(peer.models for peer in peers))
            self._desired.stop_awaiting(lambda name: not owned.owns(name))
            for name in sorted(named):
                if owned.owns(name) and name not in self._desired.awaited:
                    self._take_over(name)
            self._await_claims({name for name in lost_models if not owned.owns(name)})
        else:
            for found in refuse_cycles(in_load_order(self._found.values())):
                if owned.owns(found.name):
                    self._take_over(found.name, found)

    def suspend(self) -> None:
        """Give all models up, as peers have served them meanwhile; hold their requests.

        Without records this scheduler knows best how its models were loaded, and keeps them.
        """
        if not self._records.are_kept:
            return
        self._desired.suspend()
        owned = [model.name for model in self._catalogue.models() if self._has(model)]
        served = [name for name in owned if self._catalogue.is_known(name)]
        names = [name for name in served if name not in self._desired.awaited]
        self._note_moves(names)
        for name in names:
            self._desired.add(name, Reason.MOVED)
            self._records.mark_unread(name)
            self._desired.add(name, Reason.TAKEN_OVER, awaited_as=self.plain_name(name))

    def resume(self) -> None:
        """Take the models that were given up over again, by their records."""
        self._desired.resume()

    def _take_over(self, name: str, found: FoundModel | None = None) -> None:
        """Ask for a model unless it is in service or has failed; without `found`, search for it."""
        if not self._catalogue.is_known(name):
            awaited_as = self.plain_name(name)
            self._records.mark_unread(name)
            self._desired.add(name, Reason.TAKEN_OVER, found, awaited_as=awaited_as)

    def _note_moves(self, names: Iterable[str]) -> None:
        new = self._desired.begin_moves(names)
        if new:
            loop = asyncio.get_running_loop()
            loop.call_later(self._times.move_s, self._desired.end_moves, new)

    def _await_claims(self, names: set[str]) -> None:
        self._unclaimed |= names
        # If the models were unloaded, no member will announce them: stop waiting after a time.
        if names:
            loop = asyncio.get_running_loop()
            loop.call_later(self._times.claim_s, self._unclaimed.difference_update, names)

    def update_groups(self) -> bool:
        """Learn which models belong together; return whether owners may have changed."""
        compositions = [*_compositions_of(self._found.values()), *_served(self._catalogue)]
        for peer in self._membership.peers.values():
            compositions += peer.compositions
            self._unclaimed -= peer.models
        return self._owned.set_groups(compositions)

    def served(self) -> Peer:
        """Return the models that this scheduler announces to peers, with their compositions."""
        models = [model for model in self._catalogue.models() if self._has(model)]
        names = {model.name for model in models if not model.unloaded or model.reason}
        names |= self._awaited().keys()
        served = _served(self._catalogue)
        compositions = {composed for composed in served if self._owned.owns(composed[0])}
        loading = ((name, self._found[name].draft) for name in self._loading)
        compositions |= {
            (name, tuple(step_models(draft))) for name, draft in loading if is_ensemble(draft)
        }
        executors = len(self._loader.sessions)
        return Peer(
            "",
            0,
            models=frozenset(names),
            compositions=tuple(sorted(compositions)),
            executors=executors,
        )

    def named(self) -> tuple[str, ...]:
        """Return the plain names of the models whose requests this scheduler accepts."""
        models = self._catalogue.models()
        names = {model.plain_name for model in models if self._has(model)}
        return tuple(sorted(names.union(self._awaited().values())))

    def on_member_lost(self) -> None:
        """Prepare for requests of lost members: clients may send them again to this scheduler."""
        self._loader.begin_takeover(self._membership.lost_models)

    def end_replaced_sequences(self) -> None:
        """End the sequences of this scheduler's models that a peer has as well."""
        for served in self._catalogue.versions():
            holder = self._membership.holder(served.name)
            if holder is not None and served.pool is not None and self._owned.owns(served.name):
                served.pool.end_sequences(f"scheduler '{holder}' has served the model meanwhile")

    def _has(self, model: ServedModel) -> bool:
        return self._owned.owns(model.name)

    def _awaited(self) -> dict[str, str]:
        awaited = self._desired.awaited
        return {name: plain for name, plain in awaited.items() if self._owned.owns(name)}


def _compositions_of(found: Iterable[FoundModel]) -> list[tuple[str, tuple[str, ...]]]:
    """Group an ensemble with its steps' models, and models of one plain name with each other."""
    found = list(found)
    compositions = [(model.name, tuple(step_models(model.draft))) for model in found]
    by_plain_name: dict[str, list[str]] = {}
    for model in found:
        by_plain_name.setdefault(model.plain_name, []).append(model.name)
    compositions += [(names[0], tuple(names[1:])) for names in by_plain_name.values()]
    return compositions


def _served(catalogue: Catalogue) -> list[tuple[str, tuple[str, ...]]]:
    return [
        (version.name, tuple(step_models(version.draft)))
        for version in catalogue.versions()
        if is_ensemble(version.draft) and not version.life.unload_begun
    ]
