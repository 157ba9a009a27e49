"""The models of one scheduler of several: those that it owns are in service, others are given away.

Finds out which models belong together, from the repositories and from what peers have in service,
and asks for loads and hand-overs. Knows no stream.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nereid_scheduler.control.rules import EXPLICIT
from nereid_scheduler.control.shards.members.membership import Peer
from nereid_scheduler.core.models.dependencies import is_ensemble, step_models
from nereid_scheduler.core.models.desired_models import Why
from nereid_scheduler.core.models.found_model import FoundModel
from nereid_scheduler.core.models.load_order import in_load_order, refuse_cycles
from nereid_scheduler.core.models.overrides import parse_override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nereid.config.recovery import RecoveryTimes
    from nereid_scheduler.control.repository.repositories import Repositories
    from nereid_scheduler.control.shards.members.membership import Membership
    from nereid_scheduler.control.shards.members.ownership import OwnedModels
    from nereid_scheduler.core.models.desired_models import DesiredModels
    from nereid_scheduler.core.models.overrides import Override
    from nereid_scheduler.placement.loads.loader import Loader
    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedModel


class ModelMoves:
    """A shard.ShardModels, and a reconciler.rules.ModelSelection."""

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
    ) -> None:
        """mode: of model control. on_regrouped: other models belong together than before, so that
        owners may have changed.
        """
        self._owned = owned
        self._membership = membership
        self._repositories = repositories
        self._catalogue = catalogue
        self._mode = mode
        self._loader = loader
        self._desired = desired
        self._on_regrouped = on_regrouped
        self._times = times
        # Whose load requests have not ended, by qualified names.
        self._loading: set[str] = set()
        # Of lost members, and others' by now, which have not named them yet: they may have stood
        # still, and wait for their peers.
        self._unclaimed: set[str] = set()
        # As of the last scan, by qualified name.
        self._found: dict[str, FoundModel] = {}

    async def scan(self) -> None:
        """Read the repositories. Raises OSError."""
        found = await asyncio.to_thread(self._repositories.scan)
        self._found = {each.name: each for each in found}
        self.update_groups()

    def _expected_models(self) -> set[str]:
        """The models that some member must have, or is about to take over."""
        expected = self._unclaimed.union(*self._membership.lost_models.values())
        if self._mode != EXPLICIT:
            found = self._found.values()
            expected.update(each.name for each in found if each.exists and each.error is None)
        return expected

    def owner(self, plain_name: str) -> str | None:
        """Who owns a model that clients know by this name; None: there is no member."""
        return self._owned.owner(self._names(plain_name)[0])

    def _names(self, plain_name: str) -> list[str]:
        """The models that clients may mean, which have one owner; the name itself, if there is
        none.
        """
        if not self._repositories.namespacing:
            return [plain_name]
        peers = self._membership.peers.values()
        known = self._found.keys() | self._catalogue.qualified_names(plain_name)
        names = sorted(known.union(*(each.models for each in peers)))
        return [each for each in names if each.endswith(f"::{plain_name}")] or [plain_name]

    def plain_name(self, name: str) -> str:
        """By which clients know a model."""
        return self._repositories.plain_name(name)

    def _holder(self, plain_name: str) -> str | None:
        holders = map(self._membership.holder, self._names(plain_name))
        return next((each for each in holders if each is not None), None)

    def has_moved(self, plain_name: str) -> bool:
        """Whether another scheduler has a model, or is about to, that cannot be found here."""
        names = self._names(plain_name)
        lost = any(not each.isdisjoint(names) for each in self._membership.lost_models.values())
        held = lost or self._holder(plain_name) is not None
        here = any(self._catalogue.model(each) is not None for each in names)
        if self.owner(plain_name) == self._membership.name:
            return held and not here
        return held or here or not self._expected_models().isdisjoint(names)

    def location(self, plain_name: str) -> str | None:
        """The member to call about a model: its owner, unless another one still has it. None: there
        is no member.
        """
        owner = self.owner(plain_name)
        holder = self._holder(plain_name)
        has_it = owner in (self._membership.name, holder)
        return owner if has_it or holder is None else holder

    def is_elsewhere(self, plain_name: str) -> bool:
        """Whether another member has a model."""
        return self._holder(plain_name) is not None

    def all_named(self) -> bool:
        """Whether each model that is to be in service is, or is being loaded, somewhere."""
        peers = self._membership.peers.values()
        return self._expected_models() <= self.served().models.union(*(p.models for p in peers))

    # ---- load requests

    async def learn_model(self, plain_name: str, override: Override | None) -> None:
        """A model is to be loaded that may be new, or composed otherwise than at the last scan.

        Raises:
            NereidError, OSError: it cannot be read.
        """
        if self._mode != EXPLICIT:
            return
        found = await asyncio.to_thread(self._find, plain_name, override)
        pending = found
        while pending:
            self._found.update((each.name, each) for each in pending)
            steps = {step for each in pending for step in step_models(each.draft)}
            new = sorted(steps - self._found.keys())
            pending = await asyncio.to_thread(self._find_qualified, new)
        self._regroup()

    def _find(self, plain_name: str, override: Override | None) -> list[FoundModel]:
        names = self._repositories.qualified_names(plain_name, override)
        if override is None:
            return self._find_qualified(names)
        # Without its files, which the load itself writes.
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
        """While a load request for this model lasts, peers know how it is composed: those that have
        models of its steps must hand them over for the load to succeed.
        """
        names = {each.name for each in self._found.values() if each.plain_name == plain_name}
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

    # ---- ModelSelection

    def select(self, found: list[FoundModel]) -> list[FoundModel]:
        """Those of the models of a scan, or to begin with, that this scheduler owns."""
        if self._mode != EXPLICIT:
            self._found = {}
        self._found.update((each.name, each) for each in found)
        self._regroup()
        owned = [each for each in found if self._owned.owns(each.name)]
        self._note_moves(each.name for each in owned if self._membership.holder(each.name))
        return owned

    def owns(self, name: str) -> bool:
        return self._owned.owns(name)

    # ---- ShardModels

    def move_models(self, lost_models: frozenset[str], leaving: frozenset[str]) -> None:
        owned = self._owned
        self._desired.end_moves(lost_models)
        moved = [model for model in self._catalogue.models() if not owned.owns(model.name)]
        held = {name for peer in self._membership.peers.values() for name in peer.models}
        self._note_moves({model.name for model in moved} | {*filter(owned.owns, held | leaving)})
        for model in moved:
            self._desired.add(model.name, Why.MOVED)
        if self._mode == EXPLICIT:
            named = lost_models.union(*(each.models for each in self._membership.peers.values()))
            self._desired.stop_awaiting(lambda name: not owned.owns(name))
            for name in sorted(named):
                if owned.owns(name) and name not in self._desired.awaited:
                    self._take_over(name)
            self._await_claims({each for each in lost_models if not owned.owns(each)})
        else:
            for found in refuse_cycles(in_load_order(self._found.values())):
                if owned.owns(found.name):
                    self._take_over(found.name, found)

    def _take_over(self, name: str, found: FoundModel | None = None) -> None:
        """Unless it is in service, or has failed. found None: it has yet to be found."""
        if not self._catalogue.is_known(name):
            awaited_as = self.plain_name(name)
            self._desired.add(name, Why.TAKEN_OVER, found, awaited_as=awaited_as)

    def _note_moves(self, names: Iterable[str]) -> None:
        """Live schedulers pass these models to one another."""
        new = self._desired.begin_moves(names)
        if new:
            loop = asyncio.get_running_loop()
            loop.call_later(self._times.move_s, self._desired.end_moves, new)

    def _await_claims(self, names: set[str]) -> None:
        self._unclaimed |= names
        # They may have been unloaded, so that nobody will name them.
        if names:
            loop = asyncio.get_running_loop()
            loop.call_later(self._times.claim_s, self._unclaimed.difference_update, names)

    def update_groups(self) -> bool:
        compositions = [*_compositions_of(self._found.values()), *_served(self._catalogue)]
        for peer in self._membership.peers.values():
            compositions += peer.compositions
            self._unclaimed -= peer.models
        return self._owned.set_groups(compositions)

    def served(self) -> Peer:
        models = [each for each in self._catalogue.models() if self._has(each)]
        names = {each.name for each in models if not each.unloaded or each.reason}
        names |= self._awaited().keys()
        composed = _served(self._catalogue)
        compositions = {each for each in composed if self._owned.owns(each[0])}
        loading = ((name, self._found[name].draft) for name in self._loading)
        compositions |= {(name, tuple(step_models(d))) for name, d in loading if is_ensemble(d)}
        executors = len(self._loader.sessions)
        return Peer(
            "",
            0,
            models=frozenset(names),
            compositions=tuple(sorted(compositions)),
            executors=executors,
        )

    def named(self) -> tuple[str, ...]:
        models = self._catalogue.models()
        names = {each.plain_name for each in models if self._has(each)}
        return tuple(sorted(names.union(self._awaited().values())))

    def on_member_lost(self) -> None:
        self._loader.begin_takeover(self._membership.lost_models)

    # ---- inside

    def _has(self, model: ServedModel) -> bool:
        return self._owned.owns(model.name)

    def _awaited(self) -> dict[str, str]:
        awaited = self._desired.awaited
        return {name: plain for name, plain in awaited.items() if self._owned.owns(name)}


def _compositions_of(found: Iterable[FoundModel]) -> list[tuple[str, tuple[str, ...]]]:
    """What belongs together by the repositories: an ensemble with its steps, and models of one
    name in several namespaces.
    """
    found = list(found)
    compositions = [(each.name, tuple(step_models(each.draft))) for each in found]
    by_plain_name: dict[str, list[str]] = {}
    for each in found:
        by_plain_name.setdefault(each.plain_name, []).append(each.name)
    compositions += [(names[0], tuple(names[1:])) for names in by_plain_name.values()]
    return compositions


def _served(catalogue: Catalogue) -> list[tuple[str, tuple[str, ...]]]:
    """What load requests have composed otherwise."""
    return [
        (version.name, tuple(step_models(version.draft)))
        for version in catalogue.versions()
        if is_ensemble(version.draft) and not version.life.unload_begun
    ]
