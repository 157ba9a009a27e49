"""Model control: which models are served, by the modes none, explicit and poll.

Reads repositories in threads, has pure code plan each load, has the loader carry it out, and waits
for the outcome. Loads and unloads of one model happen one after another; a load that fails leaves
the old versions in service. The texts are Triton's.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakValueDictionary

from nereid.core.errors import Internal, InvalidArgument, NereidError, Unavailable
from nereid.object_store.errors import StoreError
from nereid.services.scheduler.models.catalogue import ServedModel, ServedVersion
from nereid.services.scheduler.models.dependencies import (
    cycle_error,
    in_load_order,
    is_ensemble,
    refuse_cycles,
    step_models,
)
from nereid.services.scheduler.models.lifecycle import VersionState, reason_of
from nereid.services.scheduler.models.reload import ModelReload
from nereid.services.scheduler.models.reload_plan import plan_reload
from nereid.services.scheduler.repository.found_model import FoundModel, NotUnique, NoVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping

    from nereid.pb import kserve_pb2
    from nereid.services.scheduler.models.catalogue import Catalogue
    from nereid.services.scheduler.models.loader import Loader
    from nereid.services.scheduler.repository.overrides import Override
    from nereid.services.scheduler.repository.repositories import Repositories
    from nereid.services.scheduler.state.model_records import ModelRecord, ModelRecords

_log = logging.getLogger(__name__)

EXPLICIT: Final = "explicit"
POLL: Final = "poll"
ALL_MODELS: Final = "*"
_NOT_ALLOWED: Final = "explicit model load / unload is not allowed if polling is enabled"

_NO_FILES: Final = (
    "model files in load requests ('file:' parameters) are not allowed on this server"
    " (--allow-model-files)"
)


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
    ) -> None:
        """records: where loads and unloads are recorded in explicit mode; None: nowhere. selection:
        of the models that this scheduler has; None: all.
        """
        self._records = records if rules.mode == EXPLICIT else None
        self._selection = selection or AllModels()
        self._repositories = repositories
        self._catalogue = catalogue
        self._loader = loader
        self._rules = rules
        # By model. Weak, since names come from clients: a lock exists while a task holds it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # FoundModel.digest of each model when it was last loaded or refused.
        self._digests: dict[str, bytes] = {}
        # Models whose last load failed: loading them again is worthwhile without a change.
        self._failed: set[str] = set()
        # Models that were loaded by name: they are not unloaded with an ensemble.
        self._requested: set[str] = set(rules.initial_models)
        # Models of steps that are loaded first, by the ensemble whose load is pending.
        self._pending_steps: dict[str, set[str]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._first_loads: list[asyncio.Task[bool]] = []
        self._hand_overs: set[asyncio.Task[None]] = set()
        # By model: what finds out how a model that is taken over was loaded.
        self._missing: dict[str, asyncio.Task[None]] = {}

    # ---- the start and the end

    async def start(self, records: Mapping[str, ModelRecord] = MappingProxyType({})) -> None:
        """Begin the first loads, and polling in its mode. records: of models that were loaded and
        unloaded before the scheduler's start, by their names.
        """
        recorded = await self._find_recorded(records)
        if recorded:
            _log.info("loading %d models that clients had loaded before", len(recorded))
        unloaded = {name for name, each in records.items() if not each.loaded}
        initial = await asyncio.to_thread(self._find_initial, recorded, unloaded)
        if not initial and self._rules.mode != EXPLICIT:
            where = ", ".join(self._repositories.paths)
            _log.warning("there are no models in %s: each is a folder there", where)
        checked = refuse_cycles(in_load_order(initial))
        for found in self._selection.select(checked):
            load = self._spawn(self._load_initially(found, recorded=found.name in recorded))
            if found.name not in recorded or found.name in self._rules.initial_models:
                self._first_loads.append(load)
        if self._rules.mode == POLL and self._rules.poll_interval_s > 0:
            self._spawn(self._poll_forever())
        # Let the loads begin, so that the first request finds the models' states.
        await asyncio.sleep(0)

    async def restore(self, records: Mapping[str, ModelRecord]) -> None:
        """Load and unload models as their records say, which become known only now. Returns when
        the loads have begun.
        """
        recorded = await self._find_recorded(records)
        checked = refuse_cycles(in_load_order(recorded.values()))
        for found in self._selection.select(checked):
            self._spawn(self._load_initially(found, recorded=True))
        for name, record in records.items():
            if not record.loaded and self._selection.owns(name):
                self._spawn(self._unload(name))
        await asyncio.sleep(0)

    async def first_loads(self) -> bool:
        """Wait for the first loads, but for those of models that clients had loaded; whether all
        succeeded.
        """
        return all(await asyncio.gather(*self._first_loads))

    async def close(self) -> None:
        """Cancel pending loads; models stay as they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _find_recorded(self, records: Mapping[str, ModelRecord]) -> dict[str, FoundModel]:
        """Models that were loaded before, with the overrides of then."""
        found = {}
        for name, record in records.items():
            if not record.loaded:
                continue
            if record.by_name:
                self._requested.add(name)
            assert self._records is not None, "records of a scheduler that keeps none"
            try:
                override = await self._records.read_override(record)
                self._require_allowed(override)
                found[name] = await asyncio.to_thread(self._find_model, name, override)
            except NereidError as error:
                found[name] = FoundModel(name, error=error)
            except OSError as error:
                unreadable = Internal(f"a model repository cannot be read: {error.strerror}")
                found[name] = FoundModel(name, error=unreadable)
        return found

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
        name = model.name
        self._digests.pop(name, None)
        self._failed.discard(name)
        self._requested.discard(name)
        self._catalogue.refusals.pop(name, None)
        self._catalogue.unrestored.discard(name)
        ends = [
            self._loader.hand_over(served, self._rules.hand_over_limit_s)
            for served in model.versions.values()
            if not served.life.unload_begun
        ]
        if ends or not model.versions:
            moving = self._spawn(self._end_hand_over(model, ends))
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

    def load_found(self, found: Iterable[FoundModel]) -> None:
        """Load those of these models that are not in service, as at the start."""
        for each in refuse_cycles(in_load_order(found)):
            if not self._is_known(each.name):
                self._await_model(each.name)
                self._spawn(self._load_initially(each))

    def load_named(self, names: Iterable[str]) -> None:
        """Load models by their qualified names, unless they are in service."""
        awaited = self._catalogue.awaited
        self._end_awaiting(each for each in [*awaited] if not self._selection.owns(each))
        missing = [name for name in names if not self._is_known(name) and name not in awaited]
        if missing:
            for name in missing:
                self._await_model(name)
            load = self._spawn(self._load_missing(missing))
            self._missing.update(dict.fromkeys(missing, load))

    async def _load_missing(self, names: list[str]) -> None:
        """As the records say, which other schedulers have written; else as in the repository."""
        try:
            records = {} if self._records is None else await self._records.read_again()
            found = await self._find_recorded(
                {name: each for name, each in records.items() if name in names}
            )

            def find_others() -> list[FoundModel]:
                return [self._find_model(each, None) for each in names if each not in found]

            models = [*found.values(), *await asyncio.to_thread(find_others)]
            # Clients may have loaded or unloaded some meanwhile.
            awaited = [each for each in models if each.name in self._catalogue.awaited]
            loading = self._selection.select(awaited)
        except BaseException:
            self._end_awaiting(names)
            raise
        self.load_found(loading)
        self._end_awaiting(set(names).difference(each.name for each in loading))

    def _await_model(self, name: str) -> None:
        """Until its load begins, its requests wait."""
        plain = name.rpartition("::")[2] if self._repositories.namespacing else name
        self._catalogue.awaited[name] = plain

    def _end_awaiting(self, names: Iterable[str]) -> None:
        for name in names:
            self._missing.pop(name, None)
            if self._catalogue.awaited.pop(name, None) is not None:
                self._loader.notify_change()

    def _is_known(self, name: str) -> bool:
        """Whether a model is in service, is being loaded, or has failed to."""
        model = self._catalogue.model(name)
        return model is not None and not model.unloaded

    # ---- requests of clients

    async def load(self, name: str, override: Override | None = None) -> None:
        """Serve a model as it is in its repository now, or as the override says.

        Raises:
            NereidError: it cannot be; what was served before still is.
        """
        self._require_explicit()
        self._require_allowed(override)
        if "/" in name or name in (".", ".."):
            raise InvalidArgument(
                f"invalid model name '{name}', model name must not contain path traversal"
                " characters"
            )
        # It goes on if the client disconnects.
        await asyncio.shield(self._spawn(self._load_all(name, override)))

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
            await asyncio.shield(self._spawn(self._unload(each)))
        for step in sorted(steps - self._requested):
            if not self._is_step(step):
                await asyncio.shield(self._spawn(self._unload(step)))

    async def index(self, *, ready_only: bool) -> kserve_pb2.RepositoryIndexResponse:
        """The models of the repositories and those in service."""
        try:
            names = await asyncio.to_thread(self._repositories.names)
        except OSError as error:
            raise Internal(f"a model repository cannot be read: {error.strerror}") from error
        return self._catalogue.index(names, ready_only=ready_only)

    def _require_allowed(self, override: Override | None) -> None:
        if override is not None and override.files and not self._rules.allow_model_files:
            raise InvalidArgument(_NO_FILES)

    def _require_explicit(self) -> None:
        if self._rules.mode != EXPLICIT:
            raise Unavailable(_NOT_ALLOWED)

    # ---- one model at a time

    async def _load_initially(self, found: FoundModel, *, recorded: bool = False) -> bool:
        """A model's load at the start. Waits for executors without limit. recorded: it was in
        service before.
        """
        async with self._lock(found.name):
            if found.error is not None:
                if recorded and not found.exists:
                    # Else nobody would see that it is missing.
                    self._catalogue.unrestored.add(found.name)
                    reason = reason_of(found.error.code, found.error.message)
                    self._catalogue.refusals[found.name] = reason
                self._show_refused(found, found.error)
                self._end_awaiting([found.name])
                return False
            return await self._try_load(found, None)

    async def _load_all(self, name: str, override: Override | None) -> None:
        """Load the models of this plain name."""
        names = [name]
        if self._repositories.namespacing:
            names = await asyncio.to_thread(self._repositories.qualified_names, name, override)
        for each in names or [name]:
            if override is None and each in self._missing:
                # It stays as it was loaded last.
                await asyncio.wait([self._missing[each]])
            await self._load(each, override)

    async def _load(self, name: str, override: Override | None) -> None:
        async with self._lock(name):
            found = await asyncio.to_thread(self._find_model, name, override)
            self._note_refusal(found)
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
            if override is None and self._is_current(found):
                if self._records is not None:
                    await self._records.record_request(name)
                return
            if is_ensemble(found.draft):
                await self._load_steps(found)
            was_served = self._is_served(name)
            try:
                await self._load_found(found, self._rules.no_executor_timeout_s)
            except NereidError:
                if not was_served and self._is_served(name):
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

    async def _load_steps(self, found: FoundModel) -> None:
        """Load the models of an ensemble's steps, unless they are in service."""
        models = {found.name: found}
        pending = [found]
        while pending:
            for name in step_models(pending.pop().draft):
                if name not in models and not self._is_served(name):
                    models[name] = await asyncio.to_thread(self._find_model, name, None)
                    pending.append(models[name])
        _require_no_cycle(found.name, partial(self._models_in, models))
        steps = [each for each in in_load_order(models.values()) if each is not found]
        plain = [each for each in steps if not is_ensemble(each.draft)]
        pending_steps = self._pending_steps.setdefault(found.name, set())
        pending_steps.update(each.name for each in steps)
        try:
            # Concurrent loads with overridden configurations could wait for each other.
            _require_no_cycle(found.name, lambda name: self._pending_steps.get(name, ()))
            await asyncio.gather(*map(self._load_step, plain))
            for each in steps:
                if is_ensemble(each.draft):
                    await self._load_step(each)
        finally:
            del self._pending_steps[found.name]

    async def _load_step(self, found: FoundModel) -> None:
        async with self._lock(found.name):
            if found.exists and not self._is_served(found.name):
                await self._try_load(found, self._rules.no_executor_timeout_s)
                if self._is_served(found.name):
                    await self._record_load(found, None)

    def _models_in(self, found: Mapping[str, FoundModel], name: str) -> list[str]:
        """The models of an ensemble's steps: as it is to be loaded, else as it is served."""
        if name in found:
            return step_models(found[name].draft)
        model = self._catalogue.model(name)
        versions = [] if model is None else model.versions.values()
        return [step for each in versions for step in step_models(each.draft)]

    def _is_step(self, name: str) -> bool:
        """Whether an ensemble that is in service, or may come into it, has a step of this model."""
        return any(
            name in step_models(each.draft)
            for each in self._catalogue.versions()
            if not each.life.unload_begun and not each.life.refused
        )

    def _is_served(self, name: str) -> bool:
        """Whether a model is ready, or being loaded."""
        model = self._catalogue.model(name)
        states = set() if model is None else {each.life.state for each in model.versions.values()}
        return not states.isdisjoint((VersionState.READY, VersionState.LOADING))

    async def _unload(self, name: str) -> None:
        async with self._lock(name):
            self._digests.pop(name, None)
            self._failed.discard(name)
            self._requested.discard(name)
            self._catalogue.refusals.pop(name, None)
            self._catalogue.unrestored.discard(name)
            self._end_awaiting([name])
            model = self._catalogue.model(name)
            # Before its versions end: it depends on them.
            is_kept = self._is_unload_kept(name)
            if model is not None:
                for served in model.versions.values():
                    if not served.life.unload_begun:
                        self._spawn(self._loader.unload(served))
            if self._records is not None:
                await self._records.record_unload(name, kept=is_kept)

    def _is_unload_kept(self, name: str) -> bool:
        """Whether an unload has to be remembered: a start would load the model, or may.

        What load requests brought whole comes back only by its record.
        """
        initial = self._rules.initial_models
        if name in initial or self._is_step(name):
            return True
        if self._catalogue.model(name) is None or self._records is None:
            return False
        return ALL_MODELS in initial or not self._records.last_files(name)

    async def _reload(self, found: FoundModel) -> None:
        """Load a model whose files have changed."""
        async with self._lock(found.name):
            await self._try_load(found, self._rules.no_executor_timeout_s)

    async def _try_load(self, found: FoundModel, no_executor_timeout_s: float | None) -> bool:
        try:
            await self._load_found(found, no_executor_timeout_s)
        except NereidError as error:
            _log.error("model '%s': %s", found.name, error.message.rstrip())
            return False
        return True

    async def _load_found(self, found: FoundModel, no_executor_timeout_s: float | None) -> None:
        """Serve a model as it was found; raises NereidError if any part of that fails."""
        name = found.name
        self._digests[name] = found.digest
        self._failed.add(name)
        self._note_refusal(found)
        if found.error is not None:
            self._end_awaiting([name])
            raise found.error
        model = self._catalogue.model(name)
        if model is None:
            model = ServedModel(name, namespace=found.namespace)
            self._catalogue.set_model(model)
        model.reason = ""
        self._end_awaiting([name])
        reload = ModelReload(self._loader, model, found)
        plan = plan_reload(model.versions, found)
        errors = await reload.run(plan, self._rules.retries, no_executor_timeout_s)
        for served in reload.to_unload:
            self._spawn(self._loader.unload(served))
        if not self._selection.owns(name):
            # It was given away meanwhile, but for what was being loaded.
            self.hand_over(model)
            return
        if found.url and reload.may_succeed_later:
            # The next poll tries again.
            self._digests.pop(name, None)
        if errors:
            raise InvalidArgument(
                f"load failed for model '{found.plain_name}': {''.join(errors)}\n"
            )
        self._failed.discard(name)

    def _find_model(self, name: str, override: Override | None) -> FoundModel:
        try:
            found = self._repositories.find(name, override)
        except StoreError as error:
            found = FoundModel(name, error=Unavailable(error.text))
        return found or FoundModel(name, error=Internal("there is no such model"))

    def _is_current(self, found: FoundModel) -> bool:
        """Whether the model is in service and has not changed since it was loaded."""
        model = self._catalogue.model(found.name)
        if model is None or found.name in self._failed:
            return False
        states = {each.life.state for each in model.versions.values() if not each.life.unload_begun}
        return states == {VersionState.READY} and self._digests.get(found.name) == found.digest

    def _note_refusal(self, found: FoundModel) -> None:
        """Have the index give the reason why a model without versions cannot be loaded, if so."""
        name, error = found.name, found.error
        self._catalogue.refusals.pop(name, None)
        if error is None:
            self._catalogue.unrestored.discard(name)
        # Names that are in no repository come from clients.
        if error is not None and found.digest:
            self._catalogue.refusals[name] = reason_of(error.code, error.message)
            if isinstance(error, NoVersion) and self._catalogue.model(name) is None:
                # As on Triton, it is known from now on.
                self._catalogue.set_model(ServedModel(name, namespace=found.namespace))

    def _show_refused(self, found: FoundModel, error: NereidError) -> None:
        """Have the index show a model that cannot be loaded, with the reason."""
        unversioned = found.exists and not found.versions
        hint = (
            f" ({found.url or found.path} has no folder with a version's number)"
            if unversioned
            else ""
        )
        _log.error("model '%s' cannot be loaded: %s%s", found.name, error.message, hint)
        if not found.exists or isinstance(error, NotUnique):
            return
        reason = reason_of(error.code, error.message)
        model = ServedModel(found.name, reason=reason, namespace=found.namespace)
        for number in found.versions:
            served = ServedVersion(
                found.name, number, found.version_path(number), found.draft, found.namespace
            )
            served.life.refuse(model.reason)
            model.versions[number] = served
        self._catalogue.set_model(model)
        self._digests[found.name] = found.digest
        self._failed.add(found.name)

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
            if not self._is_busy(each.name) and self._digests.get(each.name) != each.digest:
                self._spawn(self._reload(each))
        present = {each.name for each in found}
        for model in self._catalogue.models():
            if model.name not in present and not self._is_busy(model.name) and model.in_service:
                self._spawn(self._unload(model.name))

    # ---- tasks

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def _is_busy(self, name: str) -> bool:
        lock = self._locks.get(name)
        return lock is not None and lock.locked()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            if not isinstance(error, NereidError):
                _log.error("a load or unload failed by a bug", exc_info=error)


def _require_no_cycle(name: str, models_in: Callable[[str], Iterable[str]]) -> None:
    cycle = cycle_error(name, models_in)
    if cycle:
        raise InvalidArgument(f"load failed for model '{name}': {cycle}\n")
