"""Turns requests of clients, flags and repository scans into loads and unloads."""

from __future__ import annotations

import asyncio
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import Internal, InvalidArgument, Unavailable
from nereid.core.permitted_models import ALL_NAMES
from nereid.core.retry_after import DEFAULT_MS
from nereid_scheduler.control.outcomes import ask_for
from nereid_scheduler.control.repository.recorded_models import require_allowed_files
from nereid_scheduler.control.rules import ALL_MODELS, EXPLICIT, POLL
from nereid_scheduler.control.sources.step_rights import StepRights
from nereid_scheduler.core.models.dependencies import step_models
from nereid_scheduler.core.models.desired_models import Reason
from nereid_scheduler.core.models.found_model import NotUnique, NoVersion
from nereid_scheduler.core.models.load_order import in_load_order, refuse_cycles
from nereid_scheduler.core.models.version_change import VersionChange

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterable, Mapping

    from nereid.core.permitted_models import PermittedModels
    from nereid_scheduler.control.outcomes import Outcome
    from nereid_scheduler.control.reconciler.reconciler import Reconciler, Sources
    from nereid_scheduler.control.repository.repositories import Repositories
    from nereid_scheduler.control.rules import ModelControlRules
    from nereid_scheduler.core.models.desired_models import DesiredModels
    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.core.models.model_record import ModelRecord
    from nereid_scheduler.core.models.overrides import Override
    from nereid_scheduler.placement.models.catalogue import Catalogue, FoundName

_log = logging.getLogger(__name__)

_NOT_ALLOWED: Final = "explicit model load / unload is not allowed if polling is enabled"
_STOPPING: Final = "the scheduler is stopping; repeat the call when the next one is ready"


class ModelControl:
    """Asks the reconciler for loads and unloads. Use it in one event loop."""

    def __init__(  # noqa: PLR0913, PLR0917 (one source or target each)
        self,
        repositories: Repositories,
        catalogue: Catalogue,
        desired: DesiredModels,
        reconciler: Reconciler,
        rules: ModelControlRules,
        sources: Sources,
    ) -> None:
        self._repositories = repositories
        self._catalogue = catalogue
        self._desired = desired
        self._reconciler = reconciler
        self._rules = rules
        self._on_demand, self._recorded, self._moves = sources
        self._first_loads: list[Outcome] = []
        self._step_rights = StepRights(repositories, catalogue)

    def await_records(self) -> None:
        """Expect a later call of `restore`, which says which models clients had loaded."""
        self._desired.await_records(awaited=True)

    async def start(self, records: Mapping[str, ModelRecord] = MappingProxyType({})) -> None:
        """Begin the first loads and, in poll mode, polling.

        records: maps the name of a model that was loaded or unloaded before to the model's record.
        """
        recorded = await self._find_recorded(records)
        unloaded = {name for name, record in records.items() if not record.loaded}
        initial = await asyncio.to_thread(self._find_initial, recorded, unloaded)
        if not initial and self._rules.mode != EXPLICIT:
            where = ", ".join(self._repositories.paths)
            _log.warning("there are no models in %s: each is a folder there", where)
        flags = self._rules.initial_models
        self._desired.require(model.name for model in initial if model.plain_name in flags)
        selected = self._select(initial)
        restored = sum(model.name in recorded for model in selected)
        if restored:
            _log.info("loading %d models that clients had loaded before", restored)
        for found in selected:
            if found.name not in self._desired.requested and self._defers(found):
                continue
            load = self._ask_for_first_load(found, records)
            if found.name not in recorded or found.name in flags:
                self._first_loads.append(load)
        if self._rules.mode == EXPLICIT and self._on_demand.enabled:
            known = {*unloaded, *(model.name for model in initial)}
            for found in refuse_cycles(await asyncio.to_thread(self._repositories.scan)):
                if found.name not in known:
                    self._on_demand.defer(found)
        if self._rules.mode == POLL and self._rules.poll_interval_s > 0:
            self._reconciler.tasks.spawn(self._poll_forever())
        await self._begin_loads()

    async def restore(self, records: Mapping[str, ModelRecord]) -> None:
        """Begin the loads and unloads of records that could be read only after the start."""
        recorded = await self._find_recorded(records)
        for found in self._select(recorded.values()):
            self._ask_for_first_load(found, records)
        for name, record in records.items():
            if not record.loaded and self._moves.owns(name):
                self._desired.add(name, Reason.UNLOADED)
        await self._begin_loads()
        self._desired.await_records(awaited=False)

    async def first_loads(self) -> bool:
        """Wait for the first loads; return whether all succeeded. Recorded models do not count."""
        return not any(await asyncio.gather(*self._first_loads))

    def _defers(self, found: FoundModel) -> bool:
        return self._on_demand.defer(found)

    def _select(self, found: Iterable[FoundModel]) -> list[FoundModel]:
        """Return the models that this scheduler owns, ensembles after the models of their steps."""
        return self._moves.select(refuse_cycles(in_load_order(found)))

    async def _begin_loads(self) -> None:
        """Reconcile at once, so that the first request finds the states of the models."""
        self._reconciler.reconcile()
        await asyncio.sleep(0)

    async def _find_recorded(self, records: Mapping[str, ModelRecord]) -> dict[str, FoundModel]:
        loaded = [record for record in records.values() if record.loaded]
        if not loaded:
            return {}
        return await self._recorded.find_outlines(loaded)

    def _ask_for_first_load(self, found: FoundModel, records: Mapping[str, ModelRecord]) -> Outcome:
        name, record = found.name, records.get(found.name)
        if record is None:
            return ask_for(self._desired, name, Reason.INITIAL, found=found)
        waits = record.files and found.error is None
        plain_name = self._repositories.plain_name(name) if waits else ""
        return ask_for(
            self._desired, name, Reason.RECORDED, found=found, record=record, awaited_as=plain_name
        )

    def _find_initial(
        self, recorded: Mapping[str, FoundModel], unloaded: Collection[str]
    ) -> list[FoundModel]:
        requested = self._rules.initial_models
        if self._rules.mode != EXPLICIT:
            return self._repositories.scan()
        found: dict[str, FoundModel] = {}
        if requested == (ALL_MODELS,):
            found = {model.name: model for model in self._repositories.scan()}
            requested = tuple(found)
        elif self._repositories.namespacing:
            requested = tuple(
                name for plain in requested for name in self._repositories.qualified_names(plain)
            )
        found |= recorded
        pending = [*reversed(requested)]
        for model in recorded.values():
            pending += step_models(model.draft)
        searched = set(recorded)
        while pending:
            name = pending.pop()
            if name not in searched:
                searched.add(name)
                if name not in found:
                    found[name] = self._repositories.require(name)
                pending += step_models(found[name].draft)
        # If a step's model is missing, the ensemble reports it, so do not return that model.
        return [
            model
            for name, model in found.items()
            if name not in unloaded and (name in requested or name in recorded or model.exists)
        ]

    async def load(
        self,
        name: str,
        override: Override | None = None,
        permitted: PermittedModels | None = None,
        version: int | None = None,
    ) -> None:
        """Serve a model as it is in its repository now, or as the override says.

        version: the one to load beside those in service; `None` leaves it to the version policy.
        permitted: who asks, and models that may be steps; `None` permits all. If the load fails,
        NereidError is raised and the old versions stay in service.
        """
        self._require_explicit()
        require_allowed_files(override, allowed=self._rules.allow_model_files)
        if not name.strip():
            raise InvalidArgument(
                "Model name cannot be empty. Please enter a valid name to deploy."
            )
        if "/" in name or name.strip() in (".", ".."):
            raise InvalidArgument(
                f"invalid model name '{name}', model name must not contain path traversal"
                " characters"
            )
        if permitted is not None and permitted.models != ALL_NAMES:
            await self._step_rights.check(name, override, permitted)
        change = None if version is None else VersionChange(version, is_added=True)
        await self._carry_out(self._load_all(name, override, _requester(permitted), change))

    async def _load_all(
        self, name: str, override: Override | None, principal: str, change: VersionChange | None
    ) -> None:
        names = [name]
        if self._repositories.namespacing:
            names = await asyncio.to_thread(self._repositories.qualified_names, name, override)
        for qualified in names or [name]:
            if change is not None and change.is_added:
                await self._require_version(qualified, change.version)
            await self._fulfil(
                qualified, Reason.BY_NAME, override=override, principal=principal, change=change
            )

    async def _require_version(self, name: str, version: int) -> None:
        """Raise InvalidArgument if the repository has the model, but not this version of it."""
        found = await asyncio.to_thread(self._repositories.require, name, None, (version,))
        if isinstance(found.error, NoVersion):
            raise InvalidArgument(f"model '{found.plain_name}' has no version {version}")

    async def unload(
        self,
        name: str,
        permitted: PermittedModels | None = None,
        version: int | None = None,
        *,
        dependents: bool = False,
    ) -> None:
        """Unload a model; return once it accepts no requests, before its last request has ended.

        version: the one to unload; the others stay in service. permitted: names who asks.
        dependents: unload steps' models too, unless they were loaded by name or other ensembles
        use them.
        """
        self._require_explicit()
        principal = _requester(permitted)
        names = self._catalogue.qualified_names(name)
        if version is not None and self._has_others(names, name, version):
            change = VersionChange(version, is_added=False)
            await self._carry_out(self._change_all(names, principal, change))
            return
        await self._carry_out(self._unload_all(names, principal, dependents=dependents))

    def _has_others(self, names: Iterable[str], plain_name: str, version: int) -> bool:
        """Return whether other versions stay in service; InvalidArgument if this one is not."""
        in_service = [set(self._catalogue.versions_in_service(name)) for name in names]
        if not any(version in versions for versions in in_service):
            raise InvalidArgument(f"version {version} of model '{plain_name}' is not in service")
        return any(versions - {version} for versions in in_service)

    async def _change_all(
        self, names: Iterable[str], principal: str, change: VersionChange
    ) -> None:
        for name in names:
            await self._fulfil(name, Reason.BY_NAME, principal=principal, change=change)

    async def _unload_all(self, names: Iterable[str], principal: str, *, dependents: bool) -> None:
        steps = {
            step
            for qualified in names
            for served in self._catalogue.running(qualified)
            for step in step_models(served.draft)
        }
        for qualified in names:
            await self._fulfil(qualified, Reason.UNLOADED, principal=principal)
        for step in sorted(steps - self._desired.requested) if dependents else ():
            if not self._catalogue.is_step(step):
                await self._fulfil(step, Reason.UNLOADED, principal=principal)

    async def _carry_out(self, work: Coroutine[None, None, None]) -> None:
        """Do work, which goes on if the client disconnects, until the scheduler stops."""
        task = self._reconciler.tasks.spawn(work)
        await asyncio.wait([task])
        if task.cancelled():
            raise Unavailable(_STOPPING, retry_after_ms=DEFAULT_MS)
        try:
            await task
        finally:
            # Break the reference cycle, as in `_fulfil`.
            del task, work

    async def _fulfil(self, name: str, reason: Reason, **rest: Any) -> None:
        error = await ask_for(self._desired, name, reason, **rest)
        if error is not None:
            try:
                raise error
            finally:
                # The error's traceback refers to this frame. The cycle would keep a load request's
                # files.
                del error, rest

    async def found_names(self) -> dict[str, FoundName]:
        """Return the names of the models in the repositories."""
        try:
            return await asyncio.to_thread(self._repositories.names)
        except OSError as error:
            raise Internal(f"a model repository cannot be read: {error.strerror}") from error

    def _require_explicit(self) -> None:
        if self._rules.mode != EXPLICIT:
            raise Unavailable(_NOT_ALLOWED)

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self._rules.poll_interval_s)
            try:
                found = await asyncio.to_thread(self._repositories.scan)
            except OSError as error:
                # If a disk cannot be read, its models must not be unloaded.
                _log.error("a model repository cannot be read: %s", error)
                continue
            self._ask_for_changes(found)

    def _ask_for_changes(self, found: list[FoundModel]) -> None:
        desired = self._desired
        for model in self._select(found):
            if desired.is_busy(model.name) or not desired.last_loads.has_changed(model):
                continue
            if isinstance(model.error, NotUnique) and self._catalogue.is_served(model.name):
                # As in Triton, serve neither of two models with one name. The next poll refuses the
                # name.
                self._desired.add(model.name, Reason.UNLOADED)
                continue
            if not self._defers(model):
                self._desired.add(model.name, Reason.POLLED, model)
        present = {model.name for model in found}
        self._on_demand.retain(present)
        for served in self._catalogue.models():
            name = served.name
            if name not in present and not desired.is_busy(name) and served.in_service:
                self._desired.add(name, Reason.UNLOADED)


def _requester(permitted: PermittedModels | None) -> str:
    return "" if permitted is None else permitted.principal
