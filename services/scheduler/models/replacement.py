"""One load of one model: new versions beside the old ones, and the change-over once they are up.

While the model serves, what replaces a serving version is not seen before all of the load has
succeeded; if any of it fails, everything stays as it was. Where nothing serves, each version stands
for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.errors import NereidError
from nereid.services.scheduler.models.catalogue import ServedVersion
from nereid.services.scheduler.models.dependencies import is_ensemble
from nereid.services.scheduler.models.lifecycle import VersionState, reason_of
from nereid.services.scheduler.models.load_rules import config_of, with_groups_of

if TYPE_CHECKING:
    from nereid.services.scheduler.models.catalogue import ServedModel
    from nereid.services.scheduler.models.loader import Loader
    from nereid.services.scheduler.models.reload_decision import Change
    from nereid.services.scheduler.repository.repositories import FoundModel


class Replacement:
    """The load of a model as it was found. surplus: what is to be retired after run()."""

    def __init__(self, loader: Loader, model: ServedModel, found: FoundModel) -> None:
        self._loader = loader
        self._model = model
        self._found = found
        self._serving = {
            number: served
            for number, served in model.versions.items()
            if served.life.state is VersionState.READY
        }
        self._new: dict[int, ServedVersion] = {}
        self.surplus: list[ServedVersion] = []

    async def run(self, change: Change, retries: int, patience_s: float | None) -> list[str]:
        """Do it; what failed, in Triton's words for each version."""
        for number in change.load:
            self._load(number)
        errors = self._resize(change.resize)
        resized = [self._serving[number] for number in change.resize]
        for attempts_left in range(retries, -1, -1):
            await self._loader.verdicts.wait([*self._new.values(), *resized], patience_s)
            failed = [each for each in self._new.values() if _has_failed(each)]
            if not failed or not attempts_left:
                break
            for served in failed:
                self._loader.discard(served)
                self._load(served.number)
        errors += [_error_status(each) for each in self._new.values() if not _is_up(each)]
        for served in resized:
            reason = self._loader.resize_error(served)
            errors += [_error_status(served, reason)] if reason else []
        if errors and self._serving:
            self._roll_back()
        else:
            self._change_over(change)
        return errors

    def _load(self, number: int) -> None:
        found = self._found
        served = ServedVersion(
            found.name,
            number,
            found.version_path(number),
            found.draft,
            files=found.files[number],
            keeper=found.keeper,
        )
        self._new[number] = served
        if number not in self._serving:
            old = self._model.versions.get(number)
            self._model.versions[number] = served
            if old is not None and not old.life.gone:
                self._loader.discard(old)
        self._loader.load(served)

    def _resize(self, numbers: tuple[int, ...]) -> list[str]:
        errors = []
        for number in numbers:
            served = self._serving[number]
            try:
                self._loader.resize(served, with_groups_of(config_of(served), self._found.draft))
            except NereidError as error:
                errors.append(_error_status(served, reason_of(error.code, error.message)))
            else:
                served.draft = self._found.draft
        return errors

    def _change_over(self, change: Change) -> None:
        for number, served in self._new.items():
            old = self._serving.get(number)
            if old is not None:
                self._model.versions[number] = served
                self.surplus.append(old)
        self.surplus += [self._model.versions[number] for number in change.unload]

    def _roll_back(self) -> None:
        for number, served in self._new.items():
            if number not in self._serving and _is_up(served):
                self.surplus.append(served)
            elif number in self._serving or served.life.state is VersionState.LOADING:
                self._loader.discard(served)


def _is_up(served: ServedVersion) -> bool:
    return served.life.state is VersionState.READY


def _has_failed(served: ServedVersion) -> bool:
    """Whether executors have tried in vain."""
    return served.life.state is VersionState.UNAVAILABLE and not served.life.refused


def _error_status(served: ServedVersion, reason: str = "") -> str:
    life = served.life
    if is_ensemble(served.draft) and life.reason:
        return life.reason
    why = reason or life.reason or "no executor has tried to load it"
    return f"version {served.number} is at {life.state.value} state: {why};"
