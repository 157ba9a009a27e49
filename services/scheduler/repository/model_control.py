"""Model control: which models are served, by the modes none, explicit and poll.

Reads repositories in threads, decides what is loaded, and has ModelLoads load one model after
another. The texts are Triton's.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid.core.errors import Internal, InvalidArgument, NereidError, Unavailable
from nereid.object_store.errors import StoreError
from nereid.services.scheduler.models.dependencies import (
    in_load_order,
    is_ensemble,
    refuse_cycles,
    step_models,
)
from nereid.services.scheduler.repository.ensemble_steps import EnsembleSteps
from nereid.services.scheduler.repository.found_model import FoundModel, NoVersion
from nereid.services.scheduler.repository.model_loads import ModelLoads
from nereid.services.scheduler.repository.recorded_models import (
    RecordedModels,
    require_allowed_files,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Coroutine, Iterable, Mapping

    from nereid.pb import kserve_pb2
    from nereid.services.scheduler.models.catalogue import Catalogue, ServedModel
    from nereid.services.scheduler.models.loader import Loader
    from nereid.services.scheduler.repository.overrides import Override
    from nereid.services.scheduler.repository.repositories import Repositories
    from nereid.services.scheduler.state.model_records import ModelRecord, ModelRecords

_log = logging.getLogger(__name__)

EXPLICIT: Final = "explicit"
POLL: Final = "poll"
ALL_MODELS: Final = "*"
_NOT_ALLOWED: Final = "explicit model load / unload is not allowed if polling is enabled"


@dataclass(frozen=True)
class ModelControlRules:
    """The settings. initial_models: those to load at the start, in explicit mode."""

    mode: str = "none"
    initial_models: tuple[str, ...] = ()
    poll_interval_s: float = 15.0
    retries: int = 0
    # How long a load waits while no executor tries.
    no_executor_timeout_s: float = 30.0
    # Whether load requests may bring files.
    allow_model_files: bool = True
    # How long a model's requests may take to finish when another scheduler takes it over.
    hand_over_limit_s: float = 30.0


class ModelSelection(Protocol):
    """Which of a mesh's models this scheduler has."""

    def select(self, found: list[FoundModel]) -> list[FoundModel]:
        """Those of these models: all of a scan, or those to begin with."""

    def owns(self, name: str) -> bool:
        """Whether this is one of them."""


class OnDemandModels(Protocol):
    """The models that are loaded by their first requests; residency.OnDemand has them."""

    def defer(self, found: FoundModel) -> bool:
        """Whether this one is not to be loaded now."""

    def forget(self, name: str) -> None:
        """A client has loaded or unloaded this one."""

    def retain(self, names: Container[str]) -> None:
        """No others are in the repositories."""

    def hosts_of(self, name: str) -> frozenset[str] | None:
        """The executors that this one is loaded anew on; None: all."""

    def on_reloaded(self, name: str) -> None:
        """A model in memory was loaded anew."""


class AllModels:
    """The selection of a mesh's only scheduler."""

    def select(self, found: list[FoundModel]) -> list[FoundModel]:
        return found

    def owns(self, name: str) -> bool:  # noqa: ARG002 (all of them)
        return True


class ModelControl:
    """Loads and unloads models; used in one event loop."""

    def __init__(  # noqa: PLR0913, PLR0917 (two are for some meshes)
        self,
        repositories: Repositories,
        catalogue: Catalogue,
        loader: Loader,
        rules: ModelControlRules,
        records: ModelRecords | None = None,
        selection: ModelSelection | None = None,
        on_demand: OnDemandModels | None = None,
    ) -> None:
        """records: where loads and unloads are recorded in explicit mode; None: nowhere. selection:
        of the models that this scheduler has; None: all. on_demand None: none is loaded on demand.
        """
        self._on_demand = on_demand
        self._records = records if rules.mode == EXPLICIT else None
        self._recorded = None
        if self._records is not None:
            files_allowed = rules.allow_model_files
            self._recorded = RecordedModels(
                repositories, self._records, files_allowed=files_allowed
            )
        self._selection = selection or AllModels()
        self._repositories = repositories
        self._catalogue = catalogue
        self._loader = loader
        self._rules = rules
        self._loads = ModelLoads(catalogue, loader, rules.retries, self._is_still_owned)
        # Models that were loaded by name: they are not unloaded with an ensemble.
        self._requested: set[str] = set(rules.initial_models)
        self._steps = EnsembleSteps(
            catalogue,
            self._loads,
            lambda name: self._find_model(name, None),
            self._forget_on_demand,
            lambda found: self._record_load(found, None),
            rules.no_executor_timeout_s,
        )
        self._first_loads: list[asyncio.Task[bool]] = []
        self._hand_overs: set[asyncio.Task[None]] = set()

    # ---- the start and the end

    async def start(self, records: Mapping[str, ModelRecord] = MappingProxyType({})) -> None:
        """Begin the first loads, and polling in its mode. records: of models that were loaded and
        unloaded before the scheduler's start, by their names.
        """
        recorded = await self._find_recorded(records.values())
        unloaded = {name for name, each in records.items() if not each.loaded}
        initial = await asyncio.to_thread(self._find_initial, recorded, unloaded)
        if not initial and self._rules.mode != EXPLICIT:
            where = ", ".join(self._repositories.paths)
            _log.warning("there are no models in %s: each is a folder there", where)
        selected = self._selection.select(refuse_cycles(in_load_order(initial)))
        restored = sum(each.name in recorded for each in selected)
        if restored:
            _log.info("loading %d models that clients had loaded before", restored)
        for found in selected:
            if found.name not in self._requested and self._is_deferred(found):
                continue
            load = self._begin_load(found, records)
            if found.name not in recorded or found.name in self._rules.initial_models:
                self._first_loads.append(load)
        if self._on_demand is not None and self._rules.mode == EXPLICIT:
            known = {*unloaded, *(each.name for each in initial)}
            for found in refuse_cycles(await asyncio.to_thread(self._repositories.scan)):
                if found.name not in known:
                    self._on_demand.defer(found)
        if self._rules.mode == POLL and self._rules.poll_interval_s > 0:
            self._loads.spawn(self._poll_forever())
        # Let the loads begin, so that the first request finds the models' states.
        await asyncio.sleep(0)

    def _is_deferred(self, found: FoundModel) -> bool:
        return self._on_demand is not None and self._on_demand.defer(found)

    def _forget_on_demand(self, name: str) -> None:
        if self._on_demand is not None:
            self._on_demand.forget(name)

    async def restore(self, records: Mapping[str, ModelRecord]) -> None:
        """Load and unload models as their records say, which become known only now. Returns when
        the loads have begun.
        """
        recorded = await self._find_recorded(records.values())
        checked = refuse_cycles(in_load_order(recorded.values()))
        for found in self._selection.select(checked):
            self._begin_load(found, records)
        for name, record in records.items():
            if not record.loaded and self._selection.owns(name):
                self._loads.spawn(self._unload(name))
        await asyncio.sleep(0)

    async def first_loads(self) -> bool:
        """Wait for the first loads, but for those of models that clients had loaded; whether all
        succeeded.
        """
        return all(await asyncio.gather(*self._first_loads))

    async def close(self) -> None:
        """Cancel pending loads; models stay as they are."""
        await self._loads.close()

    async def _find_recorded(self, records: Iterable[ModelRecord]) -> dict[str, FoundModel]:
        """Models that were loaded before, with the overrides of then but for their files."""
        loaded = [each for each in records if each.loaded]
        if not loaded:
            return {}
        assert self._recorded is not None, "records of a scheduler that keeps none"
        return await self._recorded.find_outlines(loaded)

    def _begin_load(
        self, found: FoundModel, records: Mapping[str, ModelRecord]
    ) -> asyncio.Task[bool]:
        """Begin a model's first load here. records: with its own, if it was in service before."""
        record = records.get(found.name)
        if record is None:
            return self._loads.spawn(self._load_initially(found))
        if record.by_name:
            self._requested.add(found.name)
        if found.error is not None or not record.files:
            return self._loads.spawn(self._load_initially(found, recorded=True))
        load = self._loads.spawn(self._load_recorded(record))
        self._await_model(found.name, load)
        return load

    async def _load_recorded(self, record: ModelRecord) -> bool:
        """Load a model with the files that its last load request brought, as soon as these can be
        read; unless it is given away, or clients load or unload it, before.
        """
        name = record.name
        assert self._recorded is not None, "a record of a scheduler that keeps none"
        try:
            found = await self._recorded.find(record)
        except Exception:
            self._loads.end_awaiting([name])
            raise
        async with self._loads.lock(name):
            if name not in self._catalogue.awaited:
                return True
            return await self._loads.load_first(found, recorded=True)

    def _find_initial(
        self, recorded: Mapping[str, FoundModel], unloaded: Collection[str]
    ) -> list[FoundModel]:
        requested = self._rules.initial_models
        if self._rules.mode != EXPLICIT:
            return self._repositories.scan()
        found: dict[str, FoundModel] = {}
        if requested == (ALL_MODELS,):
            found = {each.name: each for each in self._repositories.scan()}
            requested = tuple(found)
        elif self._repositories.namespacing:
            requested = tuple(
                name for each in requested for name in self._repositories.qualified_names(each)
            )
            self._requested.update(requested)
        found |= recorded
        pending = [*reversed(requested)]
        for each in recorded.values():
            pending += step_models(each.draft)
        searched = set(recorded)
        while pending:
            name = pending.pop()
            if name not in searched:
                searched.add(name)
                if name not in found:
                    found[name] = self._find_model(name, None)
                pending += step_models(found[name].draft)
        # A missing model of a step is an error of its ensemble, not of a model.
        return [
            each
            for name, each in found.items()
            if name not in unloaded and (name in requested or name in recorded or each.exists)
        ]

    # ---- moves between schedulers

    def hand_over(self, model: ServedModel) -> None:
        """Another scheduler has this model now: give it away. May be called again."""
        self._loads.forget(model.name)
        self._requested.discard(model.name)
        ends = [
            self._loader.hand_over(served, self._rules.hand_over_limit_s)
            for served in model.versions.values()
            if not served.life.unload_begun
        ]
        if ends or not model.versions:
            moving = self._loads.spawn(self._end_hand_over(model, ends))
            self._hand_overs.add(moving)
            moving.add_done_callback(self._hand_overs.discard)

    async def finish_hand_overs(self, limit_s: float) -> None:
        """Wait until all models are given away that are to be."""
        if self._hand_overs:
            await asyncio.wait(self._hand_overs, timeout=limit_s)

    async def _end_hand_over(
        self, model: ServedModel, ends: list[Coroutine[None, None, None]]
    ) -> None:
        await asyncio.gather(*ends)
        # It may have come back, or be loaded for a client that did not know yet.
        current = self._catalogue.model(model.name) is model
        if current and model.unloaded and not self._selection.owns(model.name):
            self._catalogue.remove_model(model)

    def _is_still_owned(self, model: ServedModel) -> bool:
        """After a load; if not, the model is given away, as all but what was being loaded was."""
        if self._selection.owns(model.name):
            return True
        self.hand_over(model)
        return False

    def load_found(self, found: Iterable[FoundModel]) -> None:
        """Load those of these models that are not in service, as at the start."""
        for each in refuse_cycles(in_load_order(found)):
            if not self._loads.is_known(each.name):
                self._await_model(each.name)
                self._loads.spawn(self._load_initially(each))

    def load_named(self, names: Iterable[str]) -> None:
        """Load models by their qualified names, unless they are in service."""
        awaited = self._catalogue.awaited
        self._loads.end_awaiting(each for each in [*awaited] if not self._selection.owns(each))
        missing = [name for name in names if not self._loads.is_known(name) and name not in awaited]
        if missing:
            search = self._loads.spawn(self._load_missing(missing))
            for name in missing:
                self._await_model(name, search)

    async def _load_missing(self, names: list[str]) -> None:
        """As the records say, which other schedulers have written; else as in the repository."""
        try:
            records = {} if self._records is None else await self._records.read_again()
            found = await self._find_recorded(records[name] for name in names if name in records)

            # A client's unload may have been the last thing that the lost scheduler did.
            unloaded = {each for each in names if each in records and not records[each].loaded}
            others = [each for each in names if each not in found and each not in unloaded]

            def find_others() -> list[FoundModel]:
                return [self._find_model(each, None) for each in others]

            models = [*found.values(), *await asyncio.to_thread(find_others)]
            # Clients may have loaded or unloaded some meanwhile.
            awaited = [each for each in models if each.name in self._catalogue.awaited]
            loading = self._selection.select(awaited)
        except BaseException:
            self._loads.end_awaiting(names)
            raise
        for each in refuse_cycles(in_load_order(loading)):
            if not self._loads.is_known(each.name):
                self._begin_load(each, records)
        self._loads.end_awaiting(set(names).difference(each.name for each in loading))

    def _await_model(self, name: str, search: asyncio.Task[Any] | None = None) -> None:
        plain = name.rpartition("::")[2] if self._repositories.namespacing else name
        self._loads.await_model(name, plain, search)

    # ---- requests of clients

    async def load(self, name: str, override: Override | None = None) -> None:
        """Serve a model as it is in its repository now, or as the override says.

        Raises:
            NereidError: it cannot be; what was served before still is.
        """
        self._require_explicit()
        require_allowed_files(override, allowed=self._rules.allow_model_files)
        if "/" in name or name in (".", ".."):
            raise InvalidArgument(
                f"invalid model name '{name}', model name must not contain path traversal"
                " characters"
            )
        # It goes on if the client disconnects.
        await asyncio.shield(self._loads.spawn(self._load_all(name, override)))

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        """Unload a model; returns when it accepts no more requests, before its last one is done.

        dependents: also the models of its steps, unless loaded by name or used by others.
        """
        self._require_explicit()
        names = self._catalogue.qualified_names(name)
        models = [self._catalogue.model(each) for each in names] if dependents else []
        versions = [
            each for model in models if model is not None for each in model.versions.values()
        ]
        steps = {
            step
            for each in versions
            if not each.life.unload_begun
            for step in step_models(each.draft)
        }
        for each in names:
            await asyncio.shield(self._loads.spawn(self._unload(each)))
        for step in sorted(steps - self._requested):
            if not self._steps.is_step(step):
                await asyncio.shield(self._loads.spawn(self._unload(step)))

    async def index(self, *, ready_only: bool) -> kserve_pb2.RepositoryIndexResponse:
        """The models of the repositories and those in service."""
        try:
            names = await asyncio.to_thread(self._repositories.names)
        except OSError as error:
            raise Internal(f"a model repository cannot be read: {error.strerror}") from error
        return self._catalogue.index(names, ready_only=ready_only)

    def _require_explicit(self) -> None:
        if self._rules.mode != EXPLICIT:
            raise Unavailable(_NOT_ALLOWED)

    # ---- loads and unloads on demand

    async def load_on_demand(self, found: FoundModel) -> None:
        """Load a model that a request needs, as it is in its repository now, on found.hosts.

        Raises:
            NereidError: it cannot be loaded.
        """
        async with self._loads.lock(found.name):
            if self._loads.is_served(found.name):
                return
            current = await asyncio.to_thread(self._find_model, found.name, None)
            current = replace(current, hosts=found.hosts)
            await self._loads.load(current, self._rules.no_executor_timeout_s)

    async def release(self, name: str) -> None:
        """Unload a model, to be loaded again on demand; returns when its memory is free."""
        async with self._loads.lock(name):
            self._loads.forget(name)
            model = self._catalogue.model(name)
            versions = () if model is None else model.versions.values()
            ends = [self._loader.unload(each) for each in versions if not each.life.unload_begun]
            await asyncio.gather(*ends)

    # ---- one model at a time

    async def _load_initially(self, found: FoundModel, *, recorded: bool = False) -> bool:
        """A model's load at the start. Waits for executors without limit. recorded: it was in
        service before.
        """
        async with self._loads.lock(found.name):
            return await self._loads.load_first(found, recorded=recorded)

    async def _load_all(self, name: str, override: Override | None) -> None:
        """Load the models of this plain name."""
        names = [name]
        if self._repositories.namespacing:
            names = await asyncio.to_thread(self._repositories.qualified_names, name, override)
        for each in names or [name]:
            if override is None:
                # It stays as it was loaded last.
                await self._loads.found(each)
            await self._load(each, override)

    async def _load(self, name: str, override: Override | None) -> None:
        async with self._loads.lock(name):
            found = await asyncio.to_thread(self._find_model, name, override)
            self._loads.note_refusal(found)
            if isinstance(found.error, NoVersion):
                raise InvalidArgument(
                    f"load failed for model '{found.plain_name}': {found.error.message}\n"
                )
            if found.error is not None:
                _log.error("model '%s' cannot be loaded: %s", name, found.error.message)
                raise Internal(
                    f"failed to load '{found.plain_name}', failed to poll from model repository:"
                    f" {found.error.message}"
                )
            self._requested.add(name)
            if override is None and self._loads.is_current(found):
                self._forget_on_demand(name)
                if self._records is not None:
                    await self._records.record_request(name)
                return
            if is_ensemble(found.draft):
                await self._steps.load_steps(found)
            # Its load begins at once: requests that wait for it go on waiting.
            self._forget_on_demand(name)
            was_served = self._loads.is_served(name)
            try:
                await self._loads.load(found, self._rules.no_executor_timeout_s)
            except NereidError:
                if not was_served and self._loads.is_served(name):
                    # Some version, or as soon as an executor joins.
                    await self._record_load(found, override)
                raise
            await self._record_load(found, override)

    async def _record_load(self, found: FoundModel, override: Override | None) -> None:
        if self._records is not None:
            if override is not None and found.override_directory is not None:
                override = replace(override, directory=str(found.override_directory.path))
            by_name = found.name in self._requested
            await self._records.record_load(found.name, override, by_name=by_name)

    async def _unload(self, name: str) -> None:
        async with self._loads.lock(name):
            self._loads.forget(name)
            self._requested.discard(name)
            model = self._catalogue.model(name)
            # Before its versions end: it depends on them.
            is_kept = self._is_unload_kept(name)
            self._forget_on_demand(name)
            self._loads.end_awaiting([name])
            if model is not None:
                for served in model.versions.values():
                    if not served.life.unload_begun:
                        self._loads.spawn(self._loader.unload(served))
            if self._records is not None:
                await self._records.record_unload(name, kept=is_kept)

    def _is_unload_kept(self, name: str) -> bool:
        """Whether an unload has to be remembered: a start would load the model, or may.

        What load requests brought whole comes back only by its record.
        """
        initial = self._rules.initial_models
        if name in initial or name in self._catalogue.on_demand or self._steps.is_step(name):
            return True
        known = self._catalogue.model(name) is not None or name in self._catalogue.awaited
        if not known or self._records is None:
            return False
        return ALL_MODELS in initial or not self._records.last_files(name)

    async def _reload(self, found: FoundModel) -> None:
        """Load a model whose files have changed."""
        on_demand = self._on_demand
        async with self._loads.lock(found.name):
            if on_demand is not None:
                found = replace(found, hosts=on_demand.hosts_of(found.name))
            await self._loads.try_load(found, self._rules.no_executor_timeout_s)
            if on_demand is not None:
                on_demand.on_reloaded(found.name)

    def _find_model(self, name: str, override: Override | None) -> FoundModel:
        try:
            found = self._repositories.find(name, override)
        except StoreError as error:
            found = FoundModel(name, error=Unavailable(error.text))
        return found or FoundModel(name, error=Internal("there is no such model"))

    # ---- polling

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self._rules.poll_interval_s)
            try:
                found = await asyncio.to_thread(self._repositories.scan)
            except OSError as error:
                # No model is unloaded because a disk cannot be read.
                _log.error("a model repository cannot be read: %s", error)
                continue
            self._load_changes(found)

    def _load_changes(self, found: list[FoundModel]) -> None:
        """Load models that are new or have changed; unload those that were deleted."""
        for each in self._selection.select(refuse_cycles(in_load_order(found))):
            if self._loads.is_busy(each.name) or not self._loads.has_changed(each):
                continue
            if not self._is_deferred(each):
                self._loads.spawn(self._reload(each))
        present = {each.name for each in found}
        if self._on_demand is not None:
            self._on_demand.retain(present)
        for model in self._catalogue.models():
            if (
                model.name not in present
                and not self._loads.is_busy(model.name)
                and model.in_service
            ):
                self._loads.spawn(self._unload(model.name))
