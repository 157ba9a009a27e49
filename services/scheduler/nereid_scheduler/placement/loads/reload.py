"""One load of one model: new versions load beside the old ones, which they then replace.

If the model is in service, new versions take over only after the whole load has succeeded. If the
model is not in service, each version succeeds or fails for itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from nereid.core.errors import NereidError, Unavailable
from nereid_scheduler.core.models.dependencies import is_ensemble
from nereid_scheduler.core.models.lifecycle import VersionState, reason_of
from nereid_scheduler.core.models.text_files import NO_TEXT_FILES
from nereid_scheduler.placement.loads.load_rules import full_config_of, with_instance_groups_of
from nereid_scheduler.placement.models.catalogue import ServedVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.model_config import ModelConfig
    from nereid_scheduler.core.models.desired_models import Cause
    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.placement.loads.loader import Loader
    from nereid_scheduler.placement.models.catalogue import ServedModel
    from nereid_scheduler.placement.models.reload_plan import ReloadPlan


class ModelReload:
    """Load a model as it was found. After run(), unload the versions in `to_unload`."""

    def __init__(
        self,
        loader: Loader,
        model: ServedModel,
        found: FoundModel,
        cause: Cause,
        *,
        continues: bool = False,
    ) -> None:
        self._cause = cause
        self._continues = continues
        self._loader = loader
        self._model = model
        self._found = found
        self._ready = {
            number: served
            for number, served in model.versions.items()
            if served.life.state is VersionState.READY
        }
        self._new: dict[int, ServedVersion] = {}
        self.to_unload: list[ServedVersion] = []
        # True if a version failed for a reason that may pass.
        self.may_succeed_later = False
        # True if a version's failure has been logged.
        self.is_reported = False
        self._is_abandoned = False

    async def run(
        self, plan: ReloadPlan, retries: int, no_executor_timeout_s: float | None
    ) -> list[str]:
        """Load the versions; return the errors, with Triton's text for each version that failed."""
        for number in plan.load:
            self._load_version(number)
        errors, updated = self._update_instances(plan.update_instances)
        for attempts_left in range(retries, -1, -1):
            versions = [*self._new.values(), *updated]
            await self._loader.waiters.wait_for_loads(versions, no_executor_timeout_s)
            failed = [served for served in self._new.values() if _has_failed(served)]
            if not failed or not attempts_left or self._is_abandoned:
                break
            for served in failed:
                self._loader.unload_now(served)
                self._load_version(served.number)
        errors += [_error_text(served) for served in self._new.values() if not _is_ready(served)]
        self.may_succeed_later = any(map(_is_unavailable, self._new.values()))
        self.is_reported = any(served.life.failed for served in self._new.values())
        for served in updated:
            reason = served.life.update_error = self._loader.instance_update_error(served)
            errors += [_error_text(served, reason)] if reason else []
        if errors and self._ready:
            self._roll_back()
            await self._roll_instances_back(updated)
        else:
            self._switch(plan)
        return errors

    def abandon(self) -> list[ServedVersion]:
        """Make run() return soon, with errors; return the versions that must be unloaded now."""
        self._is_abandoned = True
        return [served for served in self._new.values() if not served.life.load_finished]

    def _load_version(self, number: int) -> None:
        found = self._found
        served = ServedVersion(
            found.name,
            number,
            found.version_path(number),
            found.draft,
            found.namespace,
            file_digest=found.file_digests[number],
            labels=found.labels,
            override_directory=found.override_directory,
            text_files=found.text_files.get(number, NO_TEXT_FILES),
            export_files=found.export_files.get(number, {}),
            hosts=found.hosts,
            is_addition=bool(self._ready),
            continues=self._continues,
            cause=self._cause,
        )
        self._new[number] = served
        if number not in self._ready:
            old = self._model.versions.get(number)
            self._model.versions[number] = served
            if old is not None and not old.life.unload_begun:
                self._loader.unload_now(old)
        self._loader.load(served)

    def _update_instances(
        self, numbers: tuple[int, ...]
    ) -> tuple[list[str], dict[ServedVersion, ModelConfig]]:
        """Return errors, and each updated version with its old configuration."""
        errors, updated = [], {}
        for number in numbers:
            served = self._ready[number]
            former = full_config_of(served)
            try:
                config = with_instance_groups_of(former, self._found.draft)
                self._loader.update_instances(served, config)
            except NereidError as error:
                errors.append(_error_text(served, reason_of(error.code, error.message)))
            else:
                updated[served] = former
        return errors, updated

    def _switch(self, plan: ReloadPlan) -> None:
        for number, served in self._new.items():
            old = self._ready.get(number)
            if old is not None:
                self._model.versions[number] = served
                self.to_unload.append(old)
        for number in plan.update_instances:
            self._ready[number].draft = self._found.draft
        self.to_unload += [self._model.versions[number] for number in plan.unload]
        for served in self.to_unload:
            served.cause = self._cause

    def _roll_back(self) -> None:
        for number, served in self._new.items():
            if number not in self._ready and _is_ready(served):
                self.to_unload.append(served)
            elif served.life.unload_begun:
                continue
            elif number in self._ready or served.life.state is VersionState.LOADING:
                self._loader.unload_now(served)

    async def _roll_instances_back(self, updated: Mapping[ServedVersion, ModelConfig]) -> None:
        for served, former in updated.items():
            # Ignore errors: an executor that hosted these instances still can, unless it has left.
            with suppress(NereidError):
                self._loader.update_instances(served, former)
        await self._loader.waiters.wait_for_loads(updated, None)


def _is_ready(served: ServedVersion) -> bool:
    return served.life.state is VersionState.READY


def _has_failed(served: ServedVersion) -> bool:
    """Return whether executors have tried to load a version and failed: a retry may help."""
    return served.life.state is VersionState.UNAVAILABLE and not served.life.refused


def _is_unavailable(served: ServedVersion) -> bool:
    return _has_failed(served) and served.life.reason.startswith(reason_of(Unavailable.code, ""))


def _error_text(served: ServedVersion, reason: str = "") -> str:
    life = served.life
    if is_ensemble(served.draft) and life.reason:
        return life.reason
    default = "no executor has tried to load it"
    if life.unload_begun:
        default = "it was unloaded while it was being loaded"
    why = reason or life.reason or default
    return f"version {served.number} is at {life.state.value} state: {why};"
