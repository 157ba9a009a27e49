"""Decides what to do next for a model: compares what is desired with what is served.

The module changes nothing. As in Triton, the models of an ensemble's steps are loaded first.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import Internal, InvalidArgument
from nereid_scheduler.control.rules import ALL_MODELS
from nereid_scheduler.core.models.dependencies import cycle_error, is_ensemble, step_models
from nereid_scheduler.core.models.desired_models import Reason
from nereid_scheduler.core.models.found_model import NoVersion
from nereid_scheduler.core.models.lifecycle import VersionState
from nereid_scheduler.core.models.load_order import in_load_order

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nereid.core.errors import NereidError
    from nereid_scheduler.core.models.desired_models import DesiredModel, DesiredModels
    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.placement.models.catalogue import Catalogue


class Action(Enum):
    """An action for a model."""

    FIND = "find it, or the models of its steps, in the repositories"
    FIND_RECORDED = "find it as its record says, which another scheduler may have written"
    READ_FILES = "read the files that its record names"
    ADD_STEPS = "have the models of its steps loaded before it, in this order"
    LOAD = "load it as it was found"
    KEEP = "it is as desired, or something else is desired by now"
    REFUSE = "it cannot be loaded"
    UNLOAD = "unload its versions"
    HAND_OVER = "give its versions to another scheduler"
    WAIT = "the models of its steps are loaded first, or the peers are not known yet"


FINDING: Final = frozenset({Action.FIND, Action.FIND_RECORDED, Action.READ_FILES})


class Decision(NamedTuple):
    """The next action for a model, with its arguments."""

    action: Action
    names: tuple[str, ...] = ()
    steps: tuple[FoundModel, ...] = ()
    error: NereidError | None = None


_ENDING_ACTIONS: Final = {
    Reason.UNLOADED: Action.UNLOAD,
    Reason.RELEASED: Action.UNLOAD,
    Reason.MOVED: Action.HAND_OVER,
}


def next_action(model: DesiredModel, desired: DesiredModels, catalogue: Catalogue) -> Decision:
    """Return the next action for `model`, which is the oldest pending generation of its name."""
    if model.reason in _ENDING_ACTIONS:
        return Decision(_ENDING_ACTIONS[model.reason])
    if model.superseded or _is_served_already(model, catalogue):
        return Decision(Action.KEEP)
    found = model.found
    if found is None and model.reason is Reason.TAKEN_OVER:
        return Decision(Action.WAIT if desired.suspended else Action.FIND_RECORDED)
    if found is None:
        return Decision(Action.FIND, names=(model.name,))
    if model.files_pending:
        return Decision(Action.READ_FILES)
    if model.reason is Reason.STEP and not found.exists:
        # The ensemble reports the missing step.
        return Decision(Action.KEEP)
    if found.error is not None:
        return Decision(Action.REFUSE, error=_refusal(model, found, found.error))
    if model.reason is Reason.BY_NAME:
        return _next_by_name(model, found, desired, catalogue)
    return _load_after_steps(model)


def _next_by_name(
    model: DesiredModel, found: FoundModel, desired: DesiredModels, catalogue: Catalogue
) -> Decision:
    if model.override is None and _is_current(found, desired, catalogue):
        return Decision(Action.KEEP)
    if model.needs is None and is_ensemble(found.draft):
        return _compose(model, found, desired, catalogue)
    return _load_after_steps(model)


def _load_after_steps(model: DesiredModel) -> Decision:
    ready = all(step.ended for step in model.needs or ())
    return Decision(Action.LOAD if ready else Action.WAIT)


def is_unload_remembered(
    name: str,
    desired: DesiredModels,
    catalogue: Catalogue,
    initial_models: Collection[str],
    *,
    brought: bool,
) -> bool:
    """Return whether to record an unload, because a later start would or might load the model."""
    if name in initial_models or name in desired.on_demand or catalogue.is_step(name):
        return True
    if catalogue.model(name) is None and name not in desired.awaited:
        return False
    return ALL_MODELS in initial_models or not brought


def _is_served_already(model: DesiredModel, catalogue: Catalogue) -> bool:
    if model.reason is Reason.TAKEN_OVER:
        return catalogue.is_known(model.name)
    return model.reason in (Reason.STEP, Reason.ON_DEMAND) and catalogue.is_served(model.name)


def _is_current(found: FoundModel, desired: DesiredModels, catalogue: Catalogue) -> bool:
    if desired.last_loads.has_failed(found.name) or desired.last_loads.has_changed(found):
        return False
    states = {version.life.state for version in catalogue.running(found.name)}
    return states == {VersionState.READY}


def _refusal(model: DesiredModel, found: FoundModel, error: NereidError) -> NereidError:
    if model.reason is not Reason.BY_NAME:
        return error
    if isinstance(error, NoVersion):
        text = f"load failed for model '{found.plain_name}': {error.message}\n"
        return InvalidArgument(text)
    return Internal(
        f"failed to load '{found.plain_name}', failed to poll from model repository:"
        f" {error.message}"
    )


def _compose(
    model: DesiredModel, found: FoundModel, desired: DesiredModels, catalogue: Catalogue
) -> Decision:
    """Find the models of an ensemble's steps that are not served; then load them."""
    models = {**model.steps, found.name: found}
    missing = dict.fromkeys(
        step
        for composed in models.values()
        for step in step_models(composed.draft)
        if step not in models and not catalogue.is_served(step)
    )
    if missing:
        return Decision(Action.FIND, names=tuple(missing))

    def composed_of(name: str) -> list[str]:
        if name in models:
            return step_models(models[name].draft)
        return [step for draft in catalogue.drafts(name, "") for step in step_models(draft)]

    def pending_in(name: str) -> Iterable[str]:
        return model.steps if name == found.name else desired.pending_steps(name)

    # Two concurrent loads with overrides could wait for each other: check pending loads too.
    cycle = cycle_error(found.name, composed_of) or cycle_error(found.name, pending_in)
    if cycle:
        text = f"load failed for model '{found.name}': {cycle}\n"
        return Decision(Action.REFUSE, error=InvalidArgument(text))
    steps = (step for step in in_load_order(models.values()) if step is not found)
    return Decision(Action.ADD_STEPS, steps=tuple(steps))
