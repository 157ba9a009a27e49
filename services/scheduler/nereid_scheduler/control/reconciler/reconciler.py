"""Makes served models match desired ones: carries out actions, one at a time per model.

Nothing else changes which models the catalogue has. If a load fails, the old versions stay.
"""

# layout: not pure, uses asyncio
# layout: not covered, acts, next_action decides

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.core.errors import INTERNAL_MESSAGE, Internal, InvalidArgument, NereidError
from nereid.model_config.remedies import with_remedy
from nereid_scheduler.control.reconciler.next_action import (
    FINDING,
    Action,
    is_unload_remembered,
    next_action,
)
from nereid_scheduler.control.repository.load_writes import LoadWrites
from nereid_scheduler.control.repository.recorded_models import NO_RECORDED_MODELS
from nereid_scheduler.control.rules import POLL
from nereid_scheduler.control.tasks import Tasks
from nereid_scheduler.core.models.desired_models import CONTINUING, PATIENT, Reason
from nereid_scheduler.core.models.found_model import NotUnique, NoVersion
from nereid_scheduler.core.models.lifecycle import reason_of
from nereid_scheduler.core.models.load_order import in_load_order, refuse_cycles
from nereid_scheduler.core.models.model_owners import ONE_OWNER
from nereid_scheduler.placement.loads.reload import ModelReload
from nereid_scheduler.placement.models.catalogue import ServedModel, ServedVersion
from nereid_scheduler.placement.models.reload_plan import plan_reload

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from nereid_scheduler.control.reconciler.next_action import Decision
    from nereid_scheduler.control.repository.recorded_models import RecordedModels
    from nereid_scheduler.control.repository.repositories import Repositories
    from nereid_scheduler.control.residency.on_demand import OnDemandLoads
    from nereid_scheduler.control.rules import ModelControlRules
    from nereid_scheduler.core.models.desired_models import DesiredModel, DesiredModels
    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.core.models.model_owners import ModelOwners
    from nereid_scheduler.placement.loads.loader import Loader
    from nereid_scheduler.placement.models.catalogue import Catalogue

_log = logging.getLogger(__name__)

# Reasons for loads whose failures are neither logged nor returned elsewhere.
_LOGGED: Final = PATIENT | {Reason.STEP, Reason.POLLED}
# After these requests of clients, a model is no longer loaded and unloaded on demand.
_ENDS_ON_DEMAND: Final = frozenset({Reason.BY_NAME, Reason.STEP, Reason.UNLOADED})


class Sources(NamedTuple):
    """Collaborators; only some schedulers have recorded models and moves."""

    on_demand: OnDemandLoads
    recorded: RecordedModels = NO_RECORDED_MODELS
    moves: ModelOwners = ONE_OWNER


class Reconciler:
    """Makes served models match desired ones. Create it inside the event loop that it runs in."""

    def __init__(  # noqa: PLR0913, PLR0917 (one source or target each)
        self,
        desired: DesiredModels,
        catalogue: Catalogue,
        loader: Loader,
        repositories: Repositories,
        rules: ModelControlRules,
        sources: Sources,
    ) -> None:
        self._desired = desired
        self._catalogue = catalogue
        self._loader = loader
        self._repositories = repositories
        self._rules = rules
        self._on_demand, self._recorded, self._moves = sources
        self.tasks = Tasks()
        self._hand_overs: set[asyncio.Task[Any]] = set()
        self._load_writes = LoadWrites()
        self._reloads: dict[DesiredModel, ModelReload] = {}

    async def finish_hand_overs(self, limit_s: float) -> None:
        """Wait until all models that move to other schedulers have been handed over."""
        self.reconcile()
        if self._hand_overs:
            await asyncio.wait(self._hand_overs, timeout=limit_s)

    def reconcile(self) -> None:
        """Begin all actions that are due."""
        taken_over: list[DesiredModel] = []
        for model in self._desired.unwanted_loads():
            self.tasks.spawn(self._abandon_load(model, self._reloads.get(model)))
        while not self.tasks.closed and (due := self._desired.take_due()):
            for model in due:
                try:
                    decision = next_action(model, self._desired, self._catalogue)
                    if decision.action is Action.FIND_RECORDED:
                        self._desired.begin(model, finds=True)
                        taken_over.append(model)
                    else:
                        self._perform(model, decision)
                except Exception:
                    self._end_unexpectedly(model)
        if taken_over:
            self.tasks.spawn(self._find_recorded(taken_over))
        self._notify_if_awaited_changed()

    async def _abandon_load(self, model: DesiredModel, reload: ModelReload | None) -> None:
        """Abandon a load that an unload waits for: code of the model's author may never return."""
        await asyncio.sleep(self._rules.unload_patience_s)
        if reload is not None and self._reloads.get(model) is reload:
            for version in reload.abandon():
                self.tasks.spawn(self._loader.unload(version))

    def _perform(self, model: DesiredModel, decision: Decision) -> None:
        if decision.action is Action.ADD_STEPS:
            self._desired.add_steps(model, decision.steps)
        elif decision.action is Action.HAND_OVER:
            self._hand_over(model)
        elif decision.action is not Action.WAIT:
            self._desired.begin(model, finds=decision.action in FINDING)
            work = {
                Action.FIND: self._find,
                Action.READ_FILES: self._read_files,
                Action.LOAD: self._load,
                Action.UNLOAD: self._begin_unload,
                Action.REFUSE: self._refuse,
                Action.KEEP: self._keep,
            }[decision.action](model, decision)
            self.tasks.spawn(self._carry_out(model, decision, work))

    async def _carry_out(
        self, model: DesiredModel, decision: Decision, work: Coroutine[None, None, None]
    ) -> None:
        try:
            await work
        except NereidError as error:
            if not isinstance(error, _ReportedError):
                if model.reason in _LOGGED:
                    _log_failure(model, error)
                self._record_failure(model, error)
            # Waiting callers keep the error. Its traceback would keep the model's files in memory.
            self._desired.end(model, error.with_traceback(None))
        except Exception:
            self._end_unexpectedly(model)
        else:
            if decision.action not in FINDING:
                self._desired.end(model)

    def _record_failure(self, model: DesiredModel, error: NereidError) -> None:
        found, cause = model.found, model.cause
        self._loader.record_event(
            "load failed",
            f"'{model.name}'",
            error.message,
            model=model.name if found is None else found.plain_name,
            cause=cause.text,
            principal=cause.principal,
        )

    def _end_unexpectedly(self, model: DesiredModel) -> None:
        _log.exception("unexpected error: model '%s' is not loaded or unloaded", model.name)
        self._desired.end(model, Internal(INTERNAL_MESSAGE))

    def _notify_if_awaited_changed(self) -> None:
        if self._desired.take_awaited_changed():
            self._loader.notify_change()

    async def _find(self, model: DesiredModel, decision: Decision) -> None:
        versions: tuple[int, ...] | None = None
        if model.change is not None:
            # Earlier generations may have changed the versions since the request came.
            versions = model.change.apply(self._catalogue.versions_in_service(model.name))

        def find() -> list[FoundModel]:
            return [
                self._repositories.require(name, model.override, versions)
                if name == model.name
                else self._repositories.require(name)
                for name in decision.names
            ]

        self._desired.on_found(model, await asyncio.to_thread(find))

    async def _read_files(self, model: DesiredModel, _: Decision) -> None:
        assert model.record is not None, "files that no record names"
        self._desired.on_found(model, [await self._recorded.find(model.record)])

    async def _find_recorded(self, models: list[DesiredModel]) -> None:
        names = [model.name for model in models]
        try:
            records = await self._recorded.records.read_again()
            known = [records[name] for name in names if name in records]
            found = await self._recorded.find_outlines(record for record in known if record.loaded)
            # Do not search for a model whose record says that it was unloaded: a client's unload
            # may be the last act of the lost scheduler.
            others = [name for name in names if name not in records]
            found |= await asyncio.to_thread(
                lambda: {name: self._repositories.require(name) for name in others}
            )
            # Clients may have loaded or unloaded some models meanwhile.
            pending = {model.name: model for model in models if not model.superseded}
            wanted = [found[name] for name in pending if name in found]
            for chosen in refuse_cycles(in_load_order(self._moves.select(wanted))):
                model = pending.pop(chosen.name)
                self._desired.on_record(model, chosen, records.get(chosen.name))
            for model in pending.values():
                self._desired.on_record(model, None, None)
        except Exception:
            for model in models:
                self._end_unexpectedly(model)

    async def _refuse(self, model: DesiredModel, decision: Decision) -> None:
        found, error = model.found, decision.error
        assert found is not None, "refused before it was found"
        assert error is not None, "refused without a reason"
        self._desired.on_refused(model)
        if model.reason is Reason.STEP:
            self._end_deferring(model)
        if model.reason in PATIENT:
            if found.exists and not isinstance(error, NotUnique):
                self._catalogue.set_model(_refused_model(found, error))
        elif isinstance(found.error, NoVersion):
            if self._catalogue.model(model.name) is None and found.digest:
                # As in Triton, the model is known from now on, although it has no version.
                self._catalogue.set_model(ServedModel(model.name, namespace=found.namespace))
        elif model.reason is Reason.BY_NAME and found.error is not None:
            _log_failure(model, found.error)
        raise error

    def _end_deferring(self, model: DesiredModel) -> None:
        if model.reason in _ENDS_ON_DEMAND:
            self._on_demand.forget(model.name)

    async def _keep(self, model: DesiredModel, _: Decision) -> None:
        self._end_deferring(model)
        if model.reason is Reason.BY_NAME:
            await self._recorded.records.record_request(model.name)

    async def _load(self, model: DesiredModel, _: Decision) -> None:
        name, found = model.name, model.found
        assert found is not None, "loaded before it was found"
        # The load begins at once, so requests that wait for the model keep waiting.
        self._end_deferring(model)
        if model.reason is Reason.POLLED:
            found = replace(found, hosts=self._on_demand.hosts_of(name))
        was_served = self._catalogue.is_served(name)
        try:
            await self._serve(model, found)
        except NereidError:
            if not was_served and self._catalogue.is_served(name):
                # Some version is served, or will be as soon as an executor joins.
                await self._record_load(model, found)
            raise
        finally:
            if model.reason is Reason.POLLED:
                self._on_demand.on_reloaded(name)
        if model.reason is Reason.BY_NAME or self._catalogue.is_served(name):
            await self._record_load(model, found)

    async def _serve(self, model: DesiredModel, found: FoundModel) -> None:
        """Load a model as it was found; raise NereidError if some part of the load failed."""
        self._desired.on_load_begun(model)
        served = self._catalogue.model(found.name)
        if served is None:
            served = ServedModel(found.name, namespace=found.namespace)
            self._catalogue.set_model(served)
        served.reason = ""
        served.config_sources = found.config_sources
        self._notify_if_awaited_changed()
        reload = ModelReload(
            self._loader, served, found, model.cause, continues=model.reason in CONTINUING
        )
        limit_s = None if model.reason in PATIENT else self._rules.no_executor_timeout_s
        self._reloads[model] = reload
        try:
            plan = plan_reload(served.versions, found)
            errors = await reload.run(plan, self._rules.retries, limit_s)
        finally:
            del self._reloads[model]
        for version in reload.to_unload:
            self.tasks.spawn(self._loader.unload(version))
        if self._rules.mode == POLL and not found.url:
            await self._note_writes(served, found)
        if not self._moves.owns(found.name) or found.name in self._desired.awaited:
            # Another scheduler owns the model now, or it was given up and is taken over anew. Only
            # versions that were still loading are left here.
            self._desired.add(found.name, Reason.MOVED)
            return
        retried = bool(found.url) and reload.may_succeed_later
        self._desired.last_loads.end(model.name, failed=bool(errors), retried=retried)
        if errors:
            kind = _ReportedError if reload.is_reported else InvalidArgument
            raise kind(f"load failed for model '{found.plain_name}': {''.join(errors)}\n")

    async def _note_writes(self, served: ServedModel, found: FoundModel) -> None:
        """Let polling ignore files that the model's own loads write: count them as loaded."""
        after = await asyncio.to_thread(self._repositories.require, found.name)
        if after.error is not None or not self._load_writes.add_load(found, after):
            return
        changed = sorted({Path(path).name for path, _ in found.files ^ after.files})
        text = "loads of model '%s' write files in its directory; polling ignores their changes: %s"
        _log.info(text, found.name, ", ".join(changed))
        self._desired.last_loads.on_files_written(found, after)
        for number, version in served.versions.items():
            if version.file_digest == found.file_digests.get(number):
                version.file_digest = after.file_digests[number]

    async def _record_load(self, model: DesiredModel, found: FoundModel) -> None:
        if model.reason not in _ENDS_ON_DEMAND:
            return
        override = model.override
        if override is not None and found.override_directory is not None:
            override = replace(override, directory=str(found.override_directory.path))
        # `requested` still says who named the model, even if the model moved during the load.
        by_name = model.reason is Reason.BY_NAME or model.name in self._desired.requested
        versions = None if model.change is None else found.versions
        await self._recorded.records.record_load(
            model.name, override, by_name=by_name, versions=versions
        )

    def _begin_unload(self, model: DesiredModel, _: Decision) -> Coroutine[None, None, None]:
        name = model.name
        # Decide before the versions end, since the result depends on them.
        remembered = is_unload_remembered(
            name,
            self._desired,
            self._catalogue,
            self._rules.initial_models,
            brought=self._recorded.records.last_files(name),
        )
        self._desired.on_unload(model)
        self._load_writes.forget(name)
        self._end_deferring(model)
        self._notify_if_awaited_changed()
        ends = []
        for version in self._catalogue.running(name):
            version.cause = model.cause
            ends.append(self.tasks.spawn(self._loader.unload(version)))
        return self._end_unload(model, ends, remembered=remembered)

    async def _end_unload(
        self, model: DesiredModel, ends: Iterable[asyncio.Task[None]], *, remembered: bool
    ) -> None:
        if model.reason is Reason.RELEASED:
            await asyncio.gather(*ends)
        else:
            await self._recorded.records.record_unload(model.name, kept=remembered)

    def _hand_over(self, model: DesiredModel) -> None:
        served = self._catalogue.model(model.name)
        limit_s = self._rules.hand_over_limit_s
        running = self._catalogue.running(model.name)
        for version in running:
            version.cause = model.cause
        ends = [self._loader.hand_over(version, limit_s) for version in running]
        if served is not None and (ends or not served.versions):
            moving = self.tasks.spawn(self._end_hand_over(served, ends))
            self._hand_overs.add(moving)
            moving.add_done_callback(self._hand_overs.discard)
        self._desired.end(model)

    async def _end_hand_over(
        self, model: ServedModel, ends: Iterable[Coroutine[None, None, None]]
    ) -> None:
        await asyncio.gather(*ends)
        # Do not remove a model that is in service again, or that a client with an old view loads,
        # nor one whose next versions are still loading: they are handed over once they have loaded.
        current = self._catalogue.model(model.name) is model
        loading = any(load.name == model.name for load in self._reloads)
        if current and model.unloaded and not loading and not self._moves.owns(model.name):
            self._catalogue.remove_model(model)


class _ReportedError(InvalidArgument):
    """The reason of the failed load has already been logged."""


def _refused_model(found: FoundModel, error: NereidError) -> ServedModel:
    model = ServedModel(
        found.name, reason=reason_of(error.code, error.message), namespace=found.namespace
    )
    for number in found.versions:
        served = model.versions[number] = ServedVersion(
            found.name, number, found.version_path(number), found.draft, found.namespace
        )
        served.life.refuse(model.reason)
    return model


def _log_failure(model: DesiredModel, error: NereidError) -> None:
    found, text = model.found, with_remedy(error.message)
    if found is not None and isinstance(found.error, NoVersion):
        text += f"; {found.url or found.path} {found.error.described_folder}"
    _log.error("model '%s' cannot be loaded: %s", model.name, text)
